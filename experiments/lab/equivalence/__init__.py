"""How far pairs of tokens are from equivalent, by two models of a text; see README.md."""
