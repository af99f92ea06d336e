"""All I/O below a repository's root: local, network and object storage; caches; files outside."""
