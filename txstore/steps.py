"""Names the steps that make data durable or delete it. The crash tests skip these steps, one at a time.

A test that named functions would need an edit whenever a function moves to another module. The name of a step stays.
Naming a step costs nothing when the step runs.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])

#: The name of each step, by the code object of its function, because frames refer to code objects.
STEPS: dict[CodeType, str] = {}


def step(name: str) -> Callable[[F], F]:
    """Name the step that a function takes. Use it as the innermost decorator: it names the function itself."""

    def named(function: F) -> F:
        STEPS[cast(FunctionType, function).__code__] = name
        return function

    return named
