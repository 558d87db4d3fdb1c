"""Should I tie? Two trained models and what they say about pairs of tokens."""
