"""Derives arrays from others whenever a commit changes what they depend on: views, as a committer sees them."""
