"""What differs between two commits, in the words of arrays, groups and attributes."""
