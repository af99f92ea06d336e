"""Merging: what two lines of history have made of a base is put together, key by key and element by element."""
