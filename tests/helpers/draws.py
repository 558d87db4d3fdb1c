"""How many random cases tests draw: with DRAWS=10 in the environment, ten times as many."""

import os


def draws(count: int) -> int:
    return count * int(os.environ.get("DRAWS", "1"))
