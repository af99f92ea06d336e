"""What is on the disk, children of the test's process, and a repository that is small but has a part of every kind."""

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import txstore
from txstore.format import names

ROOT = Path(txstore.__file__).parents[1]
NOBODY = 65534


def tree(path: Path) -> dict[str, bytes | None]:
    """Everything below a path: the contents of files, None for directories.

    Not who had the turn to commit last, nor the log of operations.
    """
    return {
        str(found.relative_to(path)): found.read_bytes() if found.is_file() and found.parent.name != "locks" else None
        for found in sorted(path.rglob("*"))
        if names.OPERATIONS not in found.relative_to(path).parts
    }


def run_python(code: str, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def in_child(function: Callable[[], Any], *, user: int | None = None) -> Any:
    """Return what a function returns in a forked child, as another user; an exception is a result, too."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # zarr has threads; the child does not use them
        child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            answer: Any = function()
        except BaseException as error:  # noqa: BLE001 - the parent is told, whatever it is
            answer = error
        try:
            content = pickle.dumps(answer)
        except Exception:  # noqa: BLE001
            content = pickle.dumps(RuntimeError(repr(answer)))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(content)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(content)


def said(error: BaseException) -> str:
    """The type and message of an exception: few exceptions survive a pickle."""
    return f"{type(error).__name__}: {error}"
