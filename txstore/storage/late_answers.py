"""Creates an object whose answer may come late: the creator reads the object back to see which process created it.

A server that restarts, or a proxy, may hold back an answer for a minute. The request continues in its own thread. Each
creator writes unique content. So if the object exists with our content, we have created it; with other content, our
request can't succeed any more. If no object exists, the server may still carry out the request.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from txstore.errors import CommitWaitWarning, warn
from txstore.observing import carried
from txstore.storage.objects.interface import ObjectStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Seconds, and multiples of the recent answer time, after which the creator looks at the object, again and again.
PATIENCE, ROUND_TRIPS = 1.5, 8


#: Whether an answer is that of a look, the content that was found, and the error.
Answers = SimpleQueue[tuple[bool, bytes | None, BaseException | None]]


class LateAnswers:
    """Creates objects of one repository exclusively, and does not wait for an answer that is late."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._usual = 0.0  # seconds that an answer has taken of late

    def create(self, path: str, parts: Sequence[Buffer]) -> None:
        """Create an object. Raises `FileExistsError` if there is another one, and what the request raises."""
        content = b"".join(parts)  # of its own: a creator that is told to have lost writes into its parts
        answers: Answers = SimpleQueue()
        began = time.monotonic()
        patience = max(PATIENCE, ROUND_TRIPS * self._usual)
        _in_thread(answers, False, lambda: self._objects.create(path, [content]))
        looks = is_told = False
        while True:
            try:
                is_of_look, found, error = answers.get(timeout=patience)
            except Empty:
                if not looks:
                    looks = True
                    _in_thread(answers, True, lambda: self._objects.get(path))
                elif not is_told:
                    is_told = True
                    _tell(path, time.monotonic() - began, "and does not say whether it is there")
                continue
            if not is_of_look:
                if error is not None:
                    try:
                        raise error
                    finally:
                        del error  # its traceback has this frame
                self._usual = (self._usual + time.monotonic() - began) / 2 if self._usual else time.monotonic() - began
                return
            looks = False
            if found is not None:
                if found == content:
                    return
                raise FileExistsError(errno.EEXIST, "it was created by another", path)
            if not is_told:
                is_told = True
                _tell(path, time.monotonic() - began, "and has not created it yet")
            time.sleep(0 if answers.qsize() else min(patience, PATIENCE))


def _in_thread(answers: Answers, is_of_look: bool, request: Callable[[], bytes | None]) -> None:
    """Send a request in a thread, which puts the answer into a queue. The process can exit without it."""

    def run() -> None:
        try:
            answers.put((is_of_look, request(), None))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the creator raises it
            answers.put((is_of_look, None, error))

    try:
        threading.Thread(target=carried(run), name="txstore create", daemon=True).start()
    except RuntimeError:  # the interpreter ends, and starts no more threads
        run()


def _tell(path: str, seconds: float, seen: str) -> None:
    told = (
        f"the server has not answered for {seconds:.0f} s whether it has created {path}, {seen}: this waits on, since "
        "it may"
    )
    with contextlib.suppress(CommitWaitWarning):  # where warnings are errors: nothing is wrong with the commit
        warn(told, CommitWaitWarning)
