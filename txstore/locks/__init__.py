"""Who may write a chunk, and what a vacuum has to keep."""
