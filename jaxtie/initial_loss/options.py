"""Options of the command line that are the initial loss's own: none. Imports no jax."""

from dataclasses import dataclass


@dataclass(frozen=True)
class InitialLossOptions:
    """What can be changed of an experiment on the initial loss alone."""
