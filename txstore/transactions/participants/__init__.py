"""Several processes in one transaction: what each has staged, whether it lives, and how their writes to a key join."""
