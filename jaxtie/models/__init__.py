"""Language models: bodies, and an embedding around a body."""
