"""A checkpoint's two embeddings: one table, equal or different; what its flags say and what loaders
do. See README.md.
"""
