"""Natural text as rows of tokens and batches of them. Imports no jax and no TensorFlow.

Text passes through the modules in this order: `files` or `tfds` (documents),
`tokens` (splits, rows of tokens on the disk, frequent words; by `vocabulary`), `batches`. `cache`
keeps all of it on the disk.
"""
