"""Guards a session, so that a commit publishes whole operations, and each operation belongs to one transaction.

Inside the gate are operations (`zarr_operations`), from their first use of the store to their end; single calls of
threads that use the store directly; and threads in a `lock` block. A thread that commits, rolls back or leaves shuts
the gate in two steps:

- *closing*: new operations wait, and operations inside continue until they end. Calls still pass, because the threads
  of zarr's fused pipeline do not know which operation they work for.
- *closed*: no operation is inside, and all operations and calls wait.

When the gate opens, it admits all waiting operations before a thread can shut it again. A thread never waits for zarr's
loop while it holds a lock that the loop needs. The loop's thread holds the gate's lock only for a few instructions.
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
from typing import NamedTuple, TypeVar

from txstore import processes
from txstore.errors import TransactionStateError
from txstore.sessions import zarr_operations
from txstore.sessions.zarr_operations import Operation, of_context

T = TypeVar("T")

#: Seconds that a thread that shuts the gate waits for operations and blocks inside.
TIMEOUT = 60.0
#: Seconds that a thread waits for the remaining tasks of operations that have failed, or are about to fail.
PATIENCE = 3.0
#: Seconds after which a waiting thread looks again by itself: an interrupt may have prevented a notification.
_SLICE = 0.05


class Block:
    """A `lock` block that a thread has entered."""

    def __init__(self) -> None:
        self.thread = get_ident()
        self.is_left = False  # True: zarr's loop must not begin operations that the block called


class _Waiting(NamedTuple):
    """A task that waits until the gate admits its operation."""

    operation: Operation
    future: asyncio.Future[None]


#: The blocks that the current thread is in. Its operations inherit them.
_blocks: contextvars.ContextVar[tuple[Block, ...]] = contextvars.ContextVar("txstore lock blocks", default=())


def forget_left_blocks() -> None:
    """Take the blocks that the calling thread has left out of its context, before it makes a call outside of them.

    A block that was dropped without `__exit__` may be collected inside a call, whose context is a copy: the block would
    stay in the thread's own, and the store would refuse all later operations of this thread.
    """
    blocks = _blocks.get()
    if blocks and any(block.is_left for block in blocks):
        _blocks.set(tuple(block for block in blocks if not block.is_left))


class Gate:
    """The gate of one session. Safe in threads, and for interrupts at any point."""

    def __init__(self, writes: Callable[[], int], fail: Callable[[str], None]) -> None:
        """`writes`, a method, returns how many writes of the session's transaction have begun. `fail` fails it."""
        self._count = weakref.WeakMethod(writes)  # weak: a session ends when the caller drops it, even with a gate
        self._fail = weakref.WeakMethod(fail)
        #: The threads that are inside a call: see `wait_to_call`.
        self.calls: set[int] = set()
        self.is_closed = False
        self.may_be_unnoted = False  # an operation inside may have written in threads, and has not `has_written`
        self._is_closing = False
        self._operations: dict[Operation | None, int] = {}  # inside, with the number of writes begun at their entry
        self._in_blocks: dict[Operation, tuple[Block, ...]] = {}  # the operations of threads in `lock` blocks
        self._lock_blocks: set[Block] = set()
        self._blocks_waiting: set[Block] = set()
        self._waiting: list[_Waiting] = []
        self._calls_waiting: set[asyncio.Future[None]] = set()  # tasks of other event loops that wait to call
        self._queue: set[int] = set()  # threads that wait to call
        self._is_pool_late = False  # a batch failed, and threads of the pipeline may still work on it
        self._lock = processes.new_lock()  # held only for a few instructions, because the loop's thread takes it
        # Take it by its lock: an interrupt in `with condition` may come after the lock is taken and before the block.
        self._changed = threading.Condition(self._lock)
        self._shutting = processes.new_lock()  # the thread that shuts the gate holds it until the gate is open again

    def _writes(self) -> int:
        count = self._count()
        return 0 if count is None else count()

    # --- calls

    def wait_to_call(self) -> None:
        """Wait until the gate is open, for `call` and the hot paths of `zarr_interface.py`, which do as it does."""
        me = get_ident()
        try:
            self._queue.add(me)
            self._wait_until_open(me)
        finally:
            self._queue.discard(me)
            self.tell()

    # A separate function: if an interrupt comes at the end of a loop's iteration, Python 3.12 and 3.13 may skip the
    # `try` or `with` around the loop.
    def _wait_until_open(self, me: int) -> None:
        while self.is_closed:
            self.calls.discard(me)
            self.tell()
            with self._lock:
                self._changed.wait_for(lambda: not self.is_closed, _SLICE)
            self.calls.add(me)

    def call(self, function: Callable[[], T]) -> T:
        """Make one call of a thread.

        Either the caller sees that the gate is closed, or the closing thread sees the caller. That needs no lock. An
        interrupt at any point leaves no trace in `calls`.
        """
        me = get_ident()
        try:
            self.calls.add(me)
            if self.is_closed:
                self.wait_to_call()
            return function()
        finally:
            self.calls.discard(me)
            if self.is_closed:
                self.tell()

    def tell(self) -> None:
        """Make all waiting threads look again."""
        with self._lock:
            self._changed.notify_all()

    # --- operations

    def may_enter(self) -> bool:
        """Admit the current operation if it need not wait. Outside of an operation, each call passes by itself."""
        if of_context.get() in self._operations:
            return True
        operation = zarr_operations.present()
        return not self.is_closed if operation is None else self._admit(operation, None)

    async def enter(self) -> None:
        """Admit the current operation; wait if necessary. A call of another event loop waits until the gate is open."""
        operation = zarr_operations.present()
        if operation is not None and operation not in self._operations:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if not self._admit(operation, future):
                await future
        while operation is None and self.is_closed:
            opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            with self._lock:
                if not self.is_closed:
                    return
                self._calls_waiting.add(opened)
            try:
                await opened
            finally:
                with self._lock:
                    self._calls_waiting.discard(opened)

    def _admit(self, operation: Operation, future: asyncio.Future[None] | None) -> bool:
        """Admit an operation and return True. If it has to wait, return False, and set `future` when it is inside.

        Raises `TransactionStateError` if the operation comes from a `lock` block that its thread has already left, for
        example by an interrupt.
        """
        operation.at_end(self._leave)
        with self._lock:
            blocks = _blocks.get()
            if any(block.is_left for block in blocks):
                operation.refuse()
                reason = "this operation was made in a `with store.lock` block, which was left before it began"
                raise TransactionStateError(reason, state="failed")
            if operation in self._operations:  # another task of the operation has just been admitted
                return True
            if not self._is_closing or not self._lock_blocks.isdisjoint(blocks):
                self._operations[operation] = self._writes()
                self.may_be_unnoted = True
                if blocks:
                    self._in_blocks[operation] = blocks
                return True
            if future is not None:
                self._waiting.append(_Waiting(operation, future))
            return False

    def _leave(self, operation: Operation) -> None:
        if operation.is_cut and self._may_have_staged(operation) and (fail := self._fail()) is not None:
            fail("a call was interrupted when it may have written a part of what it writes")
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
        """Tell whether the calling operation may have staged anything, or may be about to in other threads."""
        operation = of_context.get()
        if operation is None:  # a single call, or a thread of the pipeline, which does not know its operation
            return bool(self._operations)
        return self._operations.get(operation) != self._writes()

    def note_write(self) -> None:
        """Note that an operation calls a method that stages. The caller does not know which operation it is."""
        if zarr_operations.is_codec_thread():
            self.may_be_unnoted = False  # first: an operation that enters meanwhile sets it again
            for each in self.inside():
                each.has_written = True

    def _may_have_staged(self, operation: Operation) -> bool:
        now = self._writes()
        return operation.has_written and self._operations.get(operation, now) != now

    # --- lock blocks

    def enter_block(self, block: Block) -> None:
        """Stay inside until `leave_block`, together with all operations that this thread calls until then."""
        _blocks.set((*_blocks.get(), block))
        with self._lock:
            (self._blocks_waiting if self._is_closing else self._lock_blocks).add(block)
        while block in self._blocks_waiting:
            with self._lock:
                self._changed.wait(_SLICE)

    def end_operations(self, block: Block, *, waits: bool) -> bool:
        """Stop a block's operations when its thread leaves it. Return True if no operation or thread still runs.

        Some run if the thread was interrupted: zarr's loop and threads continue their work. From now on the store
        refuses them. If the caller `waits`, they have some time to end. Tasks that have not begun never begin.
        """
        # Only the block's own thread can remove the block from its context. If another thread marked it as left, the
        # store would refuse all later operations of the block's thread.
        block.is_left = get_ident() == block.thread
        with self._lock:
            late = [operation for operation, blocks in self._in_blocks.items() if block in blocks]
        if not late:
            return True
        for operation in late:
            operation.refuse()
        if not waits or zarr_operations.is_on_loop():  # the loop can't wait for itself
            return False
        deadline = time.monotonic() + PATIENCE
        has_ended = self._wait_for(lambda: self._operations.keys().isdisjoint(late), deadline)
        return has_ended and zarr_operations.finish_codec_threads(max(0.0, deadline - time.monotonic()))

    def leave_block(self, block: Block) -> None:
        """Leave the gate, or stop waiting for it. Any thread may call this, also repeatedly."""
        self._blocks_waiting.discard(block)
        self._lock_blocks.discard(block)
        self.tell()
        _blocks.set(tuple(each for each in _blocks.get() if each != block))

    # --- shutting

    @contextmanager
    def shut(self) -> Iterator[Gate]:
        """Admit no new operations while a `with` block runs. The block calls `close`. One thread at a time."""
        me = get_ident()
        # A thread that commits in its lock block counts as outside: two such threads must not wait for each other.
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
                    self._open()  # after an interrupt: no other thread would admit the waiting operations
                    raise

    def close(self, timeout: float | None = None) -> bool:
        """Wait until no operation is inside, then close the gate. Returns False if `timeout` ends first.

        `timeout` is in seconds, by default `TIMEOUT`. On the thread of zarr's loop, the gate closes at once, because
        that thread can't wait for itself.
        """
        if zarr_operations.is_on_loop():
            self.is_closed = True
            return True
        me = get_ident()
        deadline = time.monotonic() + (TIMEOUT if timeout is None else timeout)
        if not self._wait_for(lambda: not (self._operations or self._lock_blocks), deadline):
            return False
        if self._is_pool_late:
            if not zarr_operations.finish_codec_threads(max(0.0, deadline - time.monotonic())):
                return False
            self._is_pool_late = False
        # Calls that waited for the last commit run before the next commit.
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
        """Open the gate. After an interrupt, call this again: waiting operations stay listed until they end."""
        with self._lock:
            self._operations.update({each.operation: self._writes() for each in self._waiting})
            self.may_be_unnoted = True
            self._lock_blocks |= self._blocks_waiting
            self._blocks_waiting.clear()
            self.is_closed = self._is_closing = False
            self._changed.notify_all()
            waiting = [*(each.future for each in self._waiting), *self._calls_waiting]
        for future in waiting:
            with suppress(RuntimeError):  # its loop is closed
                future.get_loop().call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def busy(timeout: float = TIMEOUT) -> TransactionStateError:
    """Return the error for operations or blocks that did not end in time."""
    return TransactionStateError(
        f"other threads are still at work with this store after {timeout:.0f} s (an operation such as z[...] = x, or a "
        "`with store.lock` block): wait for them, then try again",
        state="open",
    )
