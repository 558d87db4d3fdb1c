"""Should I tie? Measure with two trained models how far pairs of tokens are from equivalent."""
