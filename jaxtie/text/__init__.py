"""Language models on text."""
