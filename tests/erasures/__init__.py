"""Random histories of erasures."""
