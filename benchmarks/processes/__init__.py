"""Several processes at once: commits, followers, readers, and other stores that many write to."""
