"""Bytes and documents, pure: no I/O. docs/format.md is the layout."""
