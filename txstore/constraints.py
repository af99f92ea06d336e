"""Constraints: what every commit has to keep, whichever process makes it. docs/how-to/constraints.md."""

from txstore.format.constraints import (
    Complete,
    Constraint,
    EqualLength,
    Fixed,
    Frozen,
    OnlyGrows,
    RequiredAttributes,
    Sorted,
    Unique,
)

__all__ = [
    "Complete",
    "Constraint",
    "EqualLength",
    "Fixed",
    "Frozen",
    "OnlyGrows",
    "RequiredAttributes",
    "Sorted",
    "Unique",
]
