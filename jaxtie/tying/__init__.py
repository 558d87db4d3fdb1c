"""The toolkit: embeddings, tie and untie, cross-entropy. `import jaxtie` exports it lazily."""
