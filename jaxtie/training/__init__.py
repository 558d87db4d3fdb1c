"""Train the members of any task."""
