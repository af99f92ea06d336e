"""Ways in and out of a repository for tools that do not know it: each module is thin, optional, and one idea."""
