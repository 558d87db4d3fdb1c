"""The paper's main experiment (section 5)."""

from jaxtie import Experiment

experiment = Experiment()
