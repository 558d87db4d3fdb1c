"""The EXor process and its results."""
