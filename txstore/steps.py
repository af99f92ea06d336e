"""Names of the steps that make things durable or take them away: the crash tests leave them out, one at a time.

A test that named functions would have to follow each of them to another module; the name of a step stays. It costs
nothing when the step is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])

#: The name of each step, by the code of its function: what a stack of frames has.
STEPS: dict[CodeType, str] = {}


def step(name: str) -> Callable[[F], F]:
    """Name the step that a function takes. The innermost decorator, since it is the function itself that is named."""

    def named(function: F) -> F:
        STEPS[cast(FunctionType, function).__code__] = name
        return function

    return named
