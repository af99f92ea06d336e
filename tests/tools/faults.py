"""A storage that records its calls, and fails or waits where a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import txstore
from tests.tools.inside import commits_of, storage_of
from tests.tools.replaced import replace_storage

Hook = Callable[..., object]


class Killed(BaseException):
    """A process ends right here: no `except Exception` catches it."""


class Watched:
    """Wraps a storage or a staged file. `before[name]` and `after[name]` are called with the arguments of each call.

    What `before` raises comes instead of the call; what `after` raises, instead of its result: a lost response.
    Calls of files are named `file.write`, `file.sync` and so on.
    """

    def __init__(self, real: Any, prefix: str = "", parent: Watched | None = None) -> None:
        self._real = real
        self._prefix = prefix
        self.calls: list[tuple[Any, ...]] = [] if parent is None else parent.calls
        self.before: dict[str, Hook] = {} if parent is None else parent.before
        self.after: dict[str, Hook] = {} if parent is None else parent.after

    def __getattr__(self, attribute: str) -> Any:
        real = getattr(self._real, attribute)
        if not callable(real):
            return real
        name = self._prefix + attribute

        def call(*args: Any, **options: Any) -> Any:
            self.calls.append((name, *args))
            self.before.get(name, _ignore)(*args)
            result = real(*args, **options)
            self.after.get(name, _ignore)(*args)
            return Watched(result, "file.", self) if name == "create" else result

        return call

    def named(self, *names: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] in names]


def _ignore(*_: object) -> None:
    pass


def watch(repo: txstore.Repository) -> Watched:
    watched = Watched(storage_of(repo))
    replace_storage(repo.engine, watched)
    commits_of(repo).branches._storage = watched  # type: ignore[assignment]
    commits_of(repo).identity._storage = watched  # type: ignore[assignment]
    repo.engine.snapshots._packs._storage = watched  # type: ignore[assignment]
    return watched


def once(error: BaseException, when: Callable[..., bool] = lambda *_: True) -> Hook:
    """Raise at the first call for which `when` is true."""
    left = [error]

    def hook(*args: Any) -> None:
        if left and when(*args):
            raise left.pop()

    return hook


def always(error: BaseException | type[BaseException]) -> Hook:
    def hook(*_: object, **__: object) -> None:
        raise error

    return hook


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let something happen, or be raised, right before each call of a method, or of a function of a module."""

    def before(of: Any, name: str, act: Hook) -> None:
        real = getattr(of, name)
        monkeypatch.setattr(of, name, lambda *given, **options: (act(*given), real(*given, **options))[1])

    return before
