"""Compare two sets of training runs by their losses; see README.md."""
