"""A corpus of natural text, as rows of tokens and batches of them; no module here imports jax or
TensorFlow.

A text passes through the modules in this order: `reading` (files -> paragraphs, sentences),
`sources` (files or a TFDS data set -> documents), `splits` (which paragraphs train, validate,
test), `vocabulary` (WordPiece), `tokens` (rows of tokens on the disk; `prepare_text` does it all),
`words` (the frequent ones), `batches` (what a step trains on). `prepared` keeps what was done once.
"""
