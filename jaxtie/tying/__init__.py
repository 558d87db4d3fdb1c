"""The toolkit: embedding tables, tying and untying them, the loss."""
