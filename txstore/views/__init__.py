"""Views: arrays that are derived from others, and never stale. docs/how-to/views.md."""

from txstore.deriving.definitions import Apply, Coarsen, Reduce, ViewDefinition, register

__all__ = ["Apply", "Coarsen", "Reduce", "ViewDefinition", "register"]
