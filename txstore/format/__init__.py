"""Bytes and documents, pure: no I/O. docs/understand/format.md is the layout."""
