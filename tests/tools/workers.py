"""Processes that run a function each, and give back what it returned or raised; and threads that do."""

import multiprocessing
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

SPAWN = multiprocessing.get_context("spawn")
#: Where there are dozens of rounds: children of a server that has imported all and has no threads.
QUICK = multiprocessing.get_context("forkserver")
QUICK.set_forkserver_preload(["txstore", "txstore.store", "zarr"])

TIMEOUT = 120


class Worker:
    """One process. Daemonic: none outlives the tests."""

    daemon = True

    def __init__(self, function: Callable[..., Any], *arguments: Any, context: Any = SPAWN) -> None:
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_run, args=(theirs, function, arguments), daemon=self.daemon)
        self.process.start()
        theirs.close()

    def result(self, timeout: float = TIMEOUT) -> Any:
        """Return what the function returned; its traceback is the message of what is raised otherwise."""
        assert self.pipe.poll(timeout), "the worker does not answer"
        well, answer = self.pipe.recv()
        self.process.join(TIMEOUT)
        assert well, f"in the worker:\n{answer}"
        return answer

    def answered(self, timeout: float = 0) -> bool:
        return self.pipe.poll(timeout)


def _run(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer = True, function(*arguments)
    except BaseException:  # noqa: BLE001 - the test is told, whatever it is
        answer = False, traceback.format_exc()
    pipe.send(answer)


@contextmanager
def ended(*workers: Worker) -> Iterator[None]:
    """Kill what is left of the workers at the end, whatever happens."""
    try:
        yield
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def run_together(function: Callable[..., Any], *arguments: tuple[Any, ...]) -> list[Any]:
    """Run a function in one process for each tuple of arguments, which follow a barrier, and return the results."""
    barrier = SPAWN.Barrier(len(arguments), timeout=TIMEOUT)
    workers = [Worker(function, barrier, *each) for each in arguments]
    with ended(*workers):
        return [worker.result() for worker in workers]


def in_time(function: Callable[[], Any]) -> Any:
    """Return what a function returns; fail if it waits for a process that was stopped."""
    answer: list[Any] = []

    def call() -> None:
        try:
            answer.append(function())
        except BaseException as error:  # noqa: BLE001 - raised below
            answer.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert not thread.is_alive(), "it waits for the stopped writer"
    if isinstance(answer[0], BaseException):
        raise answer[0]
    return answer[0]


def run_threads(*functions: Callable[[], object]) -> None:
    """Run a thread for each, and fail if one raises or does not end."""
    failures: list[BaseException] = []

    def run(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - the test is told
            failures.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert failures == []
