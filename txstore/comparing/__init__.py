"""Shows how two commits differ, in terms of arrays, groups and attributes."""
