"""Audit the embeddings and flags of a checkpoint; see README.md."""
