"""Ctrl-C at any moment of a function: before each instruction of it, to be raised where the interpreter raises it."""

import ctypes
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

needs_monitoring = pytest.mark.skipif(sys.version_info < (3, 12), reason="needs sys.monitoring")

# A signal that Python code sends itself comes before the next instruction of that code. One that comes from a callback
# in C comes to the code that is watched.
_ctrl_c: Any = ctypes.pythonapi.PyErr_SetInterrupt
_ctrl_c.argtypes = [ctypes.py_object] * 2
_ctrl_c.restype = None


class Interrupts:
    """Runs a function again and again in the main thread, each time interrupted later, until it comes through.

    Interrupted is what runs of txstore, and of `threading`, which it waits with, and what C that calls does then.
    """

    def __init__(
        self, function: Callable[[], object], *, step: int = 1, expected: type[BaseException] | None = None
    ) -> None:
        """`expected` is what the function raises when nothing interrupts it; interrupted is each `step`-th moment."""
        self.count = 0
        self.step = step
        self.where = ""
        self.function = function
        self.expected = expected
        self.left = 0

    def __repr__(self) -> str:
        return f"interrupt {self.count}, at {self.where}"

    def again(self) -> bool:
        """Return False when the function has come to its end."""
        self.count += self.step
        self.left = self.count
        self.where = ""
        before = signal.signal(signal.SIGINT, self.handle), sys.unraisablehook
        sys.unraisablehook = _pass_interrupts
        tool, event = sys.monitoring.DEBUGGER_ID, sys.monitoring.events.INSTRUCTION
        sys.monitoring.use_tool_id(tool, "interrupts")
        try:
            for code in _codes():
                sys.monitoring.set_local_events(tool, code, event)
            sys.monitoring.register_callback(tool, event, self._count)
            try:
                self.function()
            finally:
                sys.monitoring.register_callback(tool, event, None)
        except BaseException as error:
            expected = self.expected is not None and isinstance(error, self.expected)
            if not expected and not (self.where and _came_of_interrupt(error)):
                raise
        finally:
            sys.monitoring.free_tool_id(tool)
            signal.signal(signal.SIGINT, before[0])
            sys.unraisablehook = before[1]
        return self.left <= 0

    def _count(self, code: CodeType, offset: int) -> None:
        self.left -= 1
        if self.left <= 0:
            sys.monitoring.register_callback(sys.monitoring.DEBUGGER_ID, sys.monitoring.events.INSTRUCTION, _ctrl_c)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if not self.where and frame is not None:  # else it was sent more than once
            self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
            sys.monitoring.register_callback(sys.monitoring.DEBUGGER_ID, sys.monitoring.events.INSTRUCTION, None)
            raise KeyboardInterrupt


def _codes() -> list[CodeType]:
    """Return what is to be interrupted."""
    if not _found:
        frozen = gc.get_freeze_count()
        gc.unfreeze()  # what other tests have frozen is among what is looked through, too
        for function in gc.get_objects():
            if isinstance(function, FunctionType):
                name = function.__globals__.get("__name__", "")
                if name.startswith("txstore.") or name == "threading":
                    _found.extend(_with_those_inside(function.__code__))
        if frozen:
            gc.freeze()
    return _found


_found: list[CodeType] = []


def _with_those_inside(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_those_inside(constant)


def _pass_interrupts(unraisable: Any) -> None:
    """A finalizer can't raise what interrupts it."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def _came_of_interrupt(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KeyboardInterrupt):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
