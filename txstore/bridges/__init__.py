"""Ways in and out of a repository: each optional, thin, and built on what everybody may use."""
