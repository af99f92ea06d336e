"""Gate: who is inside a session, so that a commit publishes whole operations, and an operation is of one transaction.

Inside are operations (`operations`), from their first use of the store to their end; calls of threads that use the
store by itself, one at a time; and threads in a `lock` block. Who commits, rolls back or leaves shuts the gate in two
steps:

- *closing*: operations that were not inside wait, and those inside go on until they end. Calls go through, since the
  threads of zarr's fused pipeline do not know which operation they work for.
- *closed*: no operation is inside, and all wait.

When the gate opens, the operations that wait are let in before it can be shut again. A thread never waits for zarr's
loop with a lock that is needed there: what the loop's thread takes, it takes for a few instructions.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import NamedTuple

from txstore import processes
from txstore.errors import TransactionStateError
from txstore.sessions import operations
from txstore.sessions.operations import Operation, of_context

#: Seconds that one who shuts the gate waits for those inside.
TIMEOUT = 60.0
#: Seconds that one waits for what is left of operations that have failed, or are about to.
PATIENCE = 3.0
#: Seconds after which one who waits looks again by itself: an interrupt may have kept another from telling.
_SLICE = 0.05


class Block:
    """A `lock` block that this thread is in."""

    def __init__(self) -> None:
        self.thread = get_ident()
        self.is_left = False  # zarr's loop may yet come to operations that were made in it


class _Waiting(NamedTuple):
    """A task that waits to be let in with its operation."""

    operation: Operation
    future: asyncio.Future[None]


#: The blocks that the present thread is in; its operations inherit them.
_blocks: contextvars.ContextVar[tuple[Block, ...]] = contextvars.ContextVar("txstore lock blocks", default=())


class Gate:
    """The gate of one session. Safe in threads, and wherever a thread is interrupted."""

    def __init__(self, writes: Callable[[], int]) -> None:
        """`writes`, a method, says how many writes of the session's transaction have begun."""
        self._count = weakref.WeakMethod(writes)  # a session ends when it is dropped, though it has a gate
        #: The threads that are in a call: see `wait_to_call`.
        self.calls: set[int] = set()
        self.is_closed = False
        self._is_closing = False
        self._operations: dict[Operation | None, int] = {}  # and how many writes had begun when they came in
        self._in_blocks: dict[Operation, tuple[Block, ...]] = {}  # of these, those of threads in `lock` blocks
        self._lock_blocks: set[Block] = set()
        self._blocks_waiting: set[Block] = set()
        self._waiting: list[_Waiting] = []
        self._queue: set[int] = set()  # threads that wait to call
        self._is_pool_late = False  # a batch has failed, and the threads of the pipeline may go on with it
        self._lock = processes.new_lock()  # held for a few instructions; the loop's thread takes it
        # Taken by its lock: `with condition` can be interrupted when it has the lock, and before it is in the block.
        self._changed = threading.Condition(self._lock)
        self._shutting = processes.new_lock()  # held by who shuts the gate, until it is open again

    def _writes(self) -> int:
        count = self._count()
        return 0 if count is None else count()

    # --- calls

    def wait_to_call(self) -> None:
        """Wait until the gate is open. A thread calls like this:

            try:
                gate.calls.add(get_ident())
                if gate.is_closed:
                    gate.wait_to_call()
                ...
            finally:
                gate.calls.discard(get_ident())
                if gate.is_closed:
                    gate.tell()

        Either the caller sees that the gate is closed, or who closes it sees the caller: that needs no lock. And an
        interrupt leaves nothing behind, wherever it comes.
        """
        me = get_ident()
        try:
            self._queue.add(me)
            self._wait_until_open(me)
        finally:
            self._queue.discard(me)
            self.tell()

    # A function of its own: if an interrupt comes where a loop goes back, Python 3.12 and 3.13 may not notice that the
    # loop stands in a `try` or `with`.
    def _wait_until_open(self, me: int) -> None:
        while self.is_closed:
            self.calls.discard(me)
            self.tell()
            with self._lock:
                self._changed.wait_for(lambda: not self.is_closed, _SLICE)
            self.calls.add(me)

    def tell(self) -> None:
        """Have all waiting threads look again."""
        with self._lock:
            self._changed.notify_all()

    # --- operations

    def may_enter(self) -> bool:
        """Let the present operation in if it need not wait. What is no operation goes through, call by call."""
        if of_context.get() in self._operations:
            return True
        operation = operations.present()
        return operation is None or self._admit(operation, None)

    async def enter(self) -> None:
        """Let the present operation in, or wait for that."""
        operation = operations.present()
        if operation is not None and operation not in self._operations:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if not self._admit(operation, future):
                await future

    def _admit(self, operation: Operation, future: asyncio.Future[None] | None) -> bool:
        """Let an operation in; if it has to wait, tell it so, and set the result of `future` when it is inside.

        Raises `TransactionStateError` for one of a `lock` block that was left before it began: by an interrupt, say.
        """
        operation.at_end(self._leave)
        with self._lock:
            blocks = _blocks.get()
            if any(block.is_left for block in blocks):
                operation.refuse()
                reason = "this operation was made in a `with store.lock` block, which was left before it began"
                raise TransactionStateError(reason, state="failed")
            if operation in self._operations:  # another of its tasks waited, and has just been let in
                return True
            if not self._is_closing or not self._lock_blocks.isdisjoint(blocks):
                self._operations[operation] = self._writes()
                if blocks:
                    self._in_blocks[operation] = blocks
                return True
            if future is not None:
                self._waiting.append(_Waiting(operation, future))
            return False

    def _leave(self, operation: Operation) -> None:
        with self._lock:
            self._is_pool_late = self._is_pool_late or (operation.has_failed and operation in self._operations)
            self._operations.pop(operation, None)
            in_block = self._in_blocks.pop(operation, None)
            if self._waiting:
                self._waiting = [each for each in self._waiting if each.operation is not operation]
            if self._is_closing or in_block:
                self._changed.notify_all()

    def inside(self) -> list[Operation]:
        """Return the operations that are inside."""
        with self._lock:
            return [operation for operation in self._operations if operation is not None]

    def has_begun_to_write(self) -> bool:
        """Tell whether the operation that calls may have staged anything by now, or be about to in other threads."""
        operation = of_context.get()
        if operation is None:  # a call by itself, or a thread of the pipeline, which does not know its operation
            return bool(self._operations)
        return self._operations.get(operation) != self._writes()

    # --- lock blocks

    def enter_block(self, block: Block) -> None:
        """Be inside until `leave_block`, with all the operations that this thread makes by then."""
        _blocks.set((*_blocks.get(), block))
        with self._lock:
            (self._blocks_waiting if self._is_closing else self._lock_blocks).add(block)
        while block in self._blocks_waiting:
            with self._lock:
                self._changed.wait(_SLICE)

    def end_operations(self, block: Block, *, waits: bool) -> bool:
        """Let no operation of a block go on when that is left; return whether none does, and none of its threads.

        There are some if its thread was interrupted: zarr's loop and threads go on with what they were at. They are
        refused the store from now on, and, if one `waits`, have some time to come to an end. Tasks that have not begun
        do not begin.
        """
        # Another thread can't take it out of the context of its own, where all that follows would be refused.
        block.is_left = get_ident() == block.thread
        with self._lock:
            late = [operation for operation, blocks in self._in_blocks.items() if block in blocks]
        if not late:
            return True
        for operation in late:
            operation.refuse()
        if not waits or operations.is_on_loop():  # which can't wait for itself
            return False
        deadline = time.monotonic() + PATIENCE
        has_ended = self._wait_for(lambda: self._operations.keys().isdisjoint(late), deadline)
        return has_ended and operations.finish_codec_threads(max(0.0, deadline - time.monotonic()))

    def leave_block(self, block: Block) -> None:
        """Be inside no longer, or not wait for it any more. Any thread may call it, and more than once."""
        self._blocks_waiting.discard(block)
        self._lock_blocks.discard(block)
        self.tell()
        _blocks.set(tuple(each for each in _blocks.get() if each != block))

    # --- shutting

    @contextmanager
    def shut(self) -> Iterator[Gate]:
        """Keep the gate from being entered while a `with` block runs, which calls `close`. One thread at a time."""
        me = get_ident()
        # A thread that commits in its block does nothing else there: two that do so must not wait for each other.
        for block in [block for block in list(self._lock_blocks) if block.thread == me]:
            self._lock_blocks.discard(block)
        with self._shutting:
            try:
                self._is_closing = True
                yield self
            finally:
                try:
                    self._open()
                except BaseException:
                    self._open()  # an interrupt: no other thread would let the waiting ones in
                    raise

    def close(self, timeout: float | None = None) -> bool:
        """Wait until no operation is inside, then close the gate. Returns whether that came about in time.

        `timeout` is in seconds, by default `TIMEOUT`. On the thread of zarr's loop, which can't wait for itself, it
        closes at once.
        """
        if operations.is_on_loop():
            self.is_closed = True
            return True
        me = get_ident()
        deadline = time.monotonic() + (TIMEOUT if timeout is None else timeout)
        if not self._wait_for(lambda: not (self._operations or self._lock_blocks), deadline):
            return False
        if self._is_pool_late:
            if not operations.finish_codec_threads(max(0.0, deadline - time.monotonic())):
                return False
            self._is_pool_late = False
        # Operations that waited for the last commit make their calls before the next.
        if not self._wait_for(lambda: not self._queue, deadline):
            return False
        self.is_closed = True
        self.calls.discard(me)  # an interrupt may have left it there
        if self._wait_for(lambda: not self._living(self.calls), deadline):
            return True
        self.is_closed = False
        return False

    def _living(self, threads: set[int]) -> set[int]:
        if threads:
            running = sys._current_frames()
            for thread in [thread for thread in list(threads) if thread not in running]:
                threads.discard(thread)
        return threads

    def _wait_for(self, condition: Callable[[], bool], deadline: float) -> bool:
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with self._lock:
                if not condition():
                    self._changed.wait(min(left, _SLICE))
        return True

    def _open(self) -> None:
        """Open the gate. After an interrupt it is called again: who waits is noted until it has left."""
        with self._lock:
            self._operations.update({each.operation: self._writes() for each in self._waiting})
            self._lock_blocks |= self._blocks_waiting
            self._blocks_waiting.clear()
            self.is_closed = self._is_closing = False
            self._changed.notify_all()
            waiting = list(self._waiting)
        for each in waiting:
            with suppress(RuntimeError):  # its loop is closed
                each.future.get_loop().call_soon_threadsafe(_wake, each.future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def busy(timeout: float = TIMEOUT) -> TransactionStateError:
    """Return the error that says that those inside did not come to an end."""
    return TransactionStateError(
        f"other threads are still at work with this store after {timeout:.0f} s (an operation such as z[...] = x, or a "
        "`with store.lock` block): wait for them, then try again",
        state="open",
    )
