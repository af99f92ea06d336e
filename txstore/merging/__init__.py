"""Merging: combines the changes of two lines of history since their base, key by key and element by element."""
