"""Tells an observer what this process does: commits, requests, bytes and look-ups in caches. By default there is none.

Without an observer, each place that would tell one only looks whether there is one.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: What is told about something, by name.
Attribute = str | int | float | bool


class Span:
    """Something that takes time, while it goes on. Nobody learns of it, unless an observer has made it."""

    def tell(self, **attributes: Attribute) -> None:
        """Add what is known only now."""


class Observer(Protocol):
    """Learns what happens, from any thread. What it raises is raised where it was told."""

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[Span]:
        """Begin something that ends with the `with` block."""

    def count(self, name: str, amount: int, **attributes: Attribute) -> None:
        """Add to a number."""


_UNTOLD: AbstractContextManager[Span] = nullcontext(Span())

#: Set by `txstore.telemetry`.
observer: Observer | None = None


def observe(new: Observer | None) -> None:
    """Tell `new` from now on, in place of the observer before."""
    global observer  # noqa: PLW0603 - a look at a global of a module is all that most processes pay
    observer = new


def span(name: str, **attributes: Attribute) -> AbstractContextManager[Span]:
    """Tell the observer, if there is one, of something that takes as long as the `with` block."""
    return _UNTOLD if observer is None else observer.span(name, **attributes)


def count(name: str, amount: int, **attributes: Attribute) -> None:
    """Add to a number of the observer, if there is one."""
    if observer is not None:
        observer.count(name, amount, **attributes)


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function for other threads: if there is an observer, it is called in the context of this caller.

    So a request that another thread sends is a part of what its caller is doing.
    """
    if observer is None:
        return function
    context = contextvars.copy_context()

    def call(*arguments: P.args, **named: P.kwargs) -> T:
        return context.copy().run(function, *arguments, **named)  # a copy: a context is in one thread at a time

    return call
