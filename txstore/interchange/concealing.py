"""Removes credentials in URLs and options from the errors that bridges raise, whichever library's text has them.

Bridges pass URLs on unchanged to many libraries, and any of these may put one into an error, or into the error's cause.
An error that shows no credentials is left as it is.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from txstore.errors import TxStoreError
from txstore.storage.objects.errors import Secrets, explain
from txstore.storage.objects.urls import public

if TYPE_CHECKING:
    from txstore.store import OpenedRepository

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def concealing(
    function: Callable[Concatenate[OpenedRepository, S, P], T],
) -> Callable[Concatenate[OpenedRepository, S, P], T]:
    """Decorate a bridge that takes a repository and a source or destination."""

    @functools.wraps(function)
    def concealed_function(repo: OpenedRepository, place: S, /, *args: P.args, **options: P.kwargs) -> T:
        access = repo.engine.access
        given = {"storage_options": options.get("storage_options"), "own": access.storage_options}
        given |= {"sources": list(access.sources.values())}
        return concealed(lambda: function(repo, place, *args, **options), [place, *access.sources], given)

    return concealed_function


def concealed(work: Callable[[], T], places: Iterable[object], options: Mapping[str, Any]) -> T:
    """Return the result of `work`; its errors show no secret of these places and options."""
    urls = tuple(_urls(places))
    secrets = Secrets(options, urls)
    try:
        return work()
    except Exception as error:
        if not any(secrets.are_in(text) for text in _texts(error)):
            raise
        told = _told(error, secrets, urls)
    raise told  # raised here: it has no context, which would show the secret again


def _urls(places: Iterable[object]) -> Iterator[str]:
    for place in places:
        if isinstance(place, str | os.PathLike):
            yield os.fspath(place)
        elif isinstance(place, Sequence) and not isinstance(place, bytes):
            yield from _urls(place)


def _texts(error: BaseException) -> Iterator[str]:
    """Yield all text that an exception and its causes would show or pickle."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield str(each)
        yield repr(each.args)
        yield repr(vars(each))  # notes, too
        if isinstance(each, OSError):
            yield f"{each.filename} {each.filename2}"
        waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


def _told(error: Exception, secrets: Secrets, urls: tuple[str, ...]) -> Exception:
    """Return a new exception with the same text without secrets."""
    if isinstance(error, TxStoreError):
        told: Exception = type(error).__new__(type(error))
        told.args = _hidden(error.args, secrets)
        told.__dict__.update(_hidden(vars(error), secrets))
        return told
    explained = explain(error, ", ".join(map(public, urls)), secrets, "read")
    if explained is not None:
        return explained.error
    words = secrets.hide(str(error))
    for kind in (FileNotFoundError, FileExistsError, PermissionError, OSError, ModuleNotFoundError, ImportError):
        if isinstance(error, kind):
            return kind(words)
    return ValueError(words if isinstance(error, ValueError) else f"{type(error).__name__}: {words}")


def _hidden(value: Any, secrets: Secrets) -> Any:
    if isinstance(value, str):
        return secrets.hide(value)
    if isinstance(value, tuple | list):
        return type(value)(_hidden(each, secrets) for each in value)
    if isinstance(value, dict):
        return {name: _hidden(each, secrets) for name, each in value.items()}
    return value
