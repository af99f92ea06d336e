"""Writes a process's frames on an object store, where a file can't grow: into packs that are uploaded as they fill up.

The first frames go into the file of the commit itself, as long as they are few: a small transaction is one object. All
that follow are collected in packs of `OBJECT_SIZE`, which are numbered from 1 and uploaded in the background, a few at
a time, so that memory is bounded. Together they are one pack of which each has a part: sequences go on from one to the
next, and an offset says in its upper bits in which of them it is (`packfile.split_offset`).

No reader sees a pack that no commit refers to, so each has its final name from the beginning.
"""

from __future__ import annotations

import operator
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from txstore import processes
from txstore.errors import CorruptionError
from txstore.format import names, packfile
from txstore.format.encoding import crc32c
from txstore.format.keys import is_document
from txstore.format.packfile import Seen, frame_parts, lay_frame
from txstore.observing import carried
from txstore.segments.pack_writer import Frames, PackWriter, Staged, bytes_of, own_bytes_of
from txstore.storage.leases import Lease
from txstore.storage.remote import RemoteStorage
from txstore.storage.request_threads import executor, in_parallel

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from txstore.segments.runs import Located

#: A pack is uploaded when the next frame would make it larger than this.
OBJECT_SIZE = 32 << 20
#: A value of this length ends its pack, which is uploaded at once. Where no room is left for a copy, the
#: caller waits, and the value is sent from the caller's memory.
LONG = 8 << 20
#: What a commit's own file holds of values, at most; and what it may still hold of them when another commit was faster:
#: the file is sent again then.
INLINE_SIZE, SENT_AGAIN = 1 << 20, 64 << 10
#: Packs of one writer that are uploaded at the same time, and how many bytes they have together, as long as there is
#: more than one; `append` waits for one of them when there are more.
UPLOADS = 12
UPLOAD_BYTES = 160 << 20
#: Bytes of documents that are kept until the commit, which lays them beside one another in its own file.
DOCUMENTS = 1 << 20


class ObjectWriter:
    """Appends framed values to the packs of one participant. Threads may append at the same time.

    After `publish` every frame is stored before `append` returns; what comes in from other threads meanwhile is stored
    together.
    """

    def __init__(self, storage: RemoteStorage, transaction: bytes, participant: int, repository_id: bytes) -> None:
        self.id = packfile.participants_pack(transaction, participant)
        self.path = names.staging_path(transaction, participant)
        self._storage = storage
        self._transaction = transaction
        self._participant = participant
        self._repository_id = repository_id
        self._own_file = PackWriter(storage, self.path, self.id, repository_id, participant=participant)
        #: What was in the commit's own file: still in memory, for this process to read, and in the nth of its packs.
        self._aside: tuple[PackWriter, int] | None = None
        self._packs: list[_Pack] = []  # number n at n - 1; the last one may be filling
        self._is_filling = False
        self._lease: Lease | None = None
        self._sequence = 0
        #: Copies of staged documents until the commit, by where they were staged, and how many bytes more are copied.
        self._documents: dict[int, bytes] = {}
        self._room_for_documents = DOCUMENTS
        self._lock = processes.new_lock()
        self._uploads = _PackUploads(storage)

    @property
    def size(self) -> int:
        """Where the frames in the commit's own file end."""
        return self._own_file.size

    @property
    def sequence(self) -> int:
        return self._own_file.sequence

    def ends(self) -> dict[int, int]:
        """Return where the frames end, by the number of the pack in the transaction."""
        packs = {packfile.pack_number(self._participant, n): pack.end for n, pack in enumerate(self._packs, 1)}
        return packs if self._participant else {0: self.size, **packs}

    @property
    def aside(self) -> int:
        """The number of the pack that has what was staged in the commit's own file; 0: that file has it."""
        return 0 if self._aside is None else packfile.pack_number(0, self._aside[1])

    def set_aside(self) -> bool:
        """Let a pack have the values that the commit's own file holds, if they are many; return whether one has now.

        Raises `OSError`.
        """
        with self._lock:
            self._check()
            if self._participant or self._uploads.is_published or self._aside is not None or self.size <= SENT_AGAIN:
                return False
            self._hold(packfile.encode_head(self.id, self._repository_id), is_alone=True)
            own, nth = self._own_file, len(self._packs) + 1
            own.finish(own.size)
            frames = self._storage.staged.read(self.path)[packfile.HEAD_SIZE :]
            self._packs.append(
                _Pack(self._transaction, packfile.pack_number(0, nth), self._repository_id, nth, 0, frames)
            )
            self._aside, self._is_filling = (own, nth), False
            self._storage.staged.forget(self.path)
            self._own_file = PackWriter(self._storage, self.path, self.id, self._repository_id)
        return True

    def append_batch(
        self, batch: Frames, keys: tuple[bytes, ...], seen: Buffer, threads: int, base: Located | None
    ) -> bool:
        return False  # of what is uploaded, a round trip is the cost, and not the call

    def append(self, kind: int, key: bytes, value: Buffer, *, seen: Seen, region: bytes = b"") -> Staged:
        """Append one frame. `value` is not needed afterwards. Raises `OSError`, also of an earlier upload."""
        is_long = memoryview(value).nbytes >= LONG
        view = bytes_of(value) if is_long else own_bytes_of(value)
        checksum = crc32c(view)
        full = None
        with self._lock:
            self._check()
            sequence = self._sequence
            self._sequence += 1
            is_inline = not (self._packs or self._uploads.is_published or self._participant)
            if is_inline and self.size + view.nbytes <= INLINE_SIZE:
                staged = self._own_file.append(kind, key, view, seen=seen, region=region)
                self._note_document(key, view, staged)
                return staged
            pack, full = self._room_for(len(key) + view.nbytes)
            staged = pack.append(kind, key, view, seen, sequence, region, checksum=checksum, is_last=is_long)
            self._note_document(key, view, staged)
            if is_long:
                self._is_filling = False
        if full is not None:
            self._uploads.begin(full)
        if is_long:
            self._uploads.begin_long(pack, self._store)
            self._check_unchanged(view, checksum)
        elif self._uploads.is_published:
            self._store(pack)
        return staged

    def document(self, offset: int) -> bytes | None:
        """Return a document that was staged here, if so much else was that it should be laid beside the others."""
        if not self._packs or (self._aside is not None and not packfile.split_offset(offset)[0]):
            return None
        return self._documents.get(offset)

    def _note_document(self, key: bytes, view: memoryview, staged: Staged) -> None:
        """Copy what was staged if it is a document and there is room. The caller holds the lock."""
        if view.nbytes <= self._room_for_documents and is_document(key.decode()):
            self._documents[staged.offset] = bytes(view)
            self._room_for_documents -= view.nbytes

    def _check_unchanged(self, view: memoryview, checksum: int) -> None:
        """Raise `OSError`, also from all that follows, if a value was changed while it was copied or uploaded."""
        if crc32c(view) != checksum:
            error = OSError("another thread changed a value while it was written: call rollback(), then write again")
            self._uploads.fail(error)
            raise error

    def _room_for(self, length: int) -> tuple[_Pack, _Pack | None]:
        """Return the pack that the next frame goes to, and one that is full by then; the caller holds the lock.

        The room for the upload of the full pack is taken here, under the lock: while one thread waits for room all
        others wait, or each of them would fill a pack meanwhile.
        """
        last = self._packs[-1] if self._is_filling else None
        if last is not None and last.end + length <= OBJECT_SIZE:
            return last, None
        if last is not None:
            self._uploads.room.take(last.end)
        if not self._participant:
            # A vacuum must not take for abandoned what no commit refers to yet.
            self._hold(b"", is_alone=True)
        number = packfile.pack_number(self._participant, len(self._packs) + 1)
        pack = _Pack(self._transaction, number, self._repository_id, len(self._packs) + 1, self._sequence - 1)
        self._packs.append(pack)
        self._is_filling = True
        return pack, last

    def _check(self) -> None:
        self._uploads.check()
        if self._lease is not None:
            self._lease.check()

    def _hold(self, about: bytes, *, is_alone: bool = False) -> None:
        """Let others see that this process stages, and that it lives; the caller holds the lock.

        Raises `FileExistsError` if another process is this participant.
        """
        if self._lease is None:
            content = about or self._own_content()
            self._lease = self._storage.create_held(self.path, content, is_alone=is_alone)

    def _own_content(self) -> bytes:
        self._own_file.create()
        return self._storage.staged.read(self.path)

    # --- uploading

    def _end_pack(self, pack: _Pack) -> None:
        """Let the next frame go to a new pack, if this one is filling."""
        # Without the lock where the pack is full: the thread that has the lock may wait for just this upload.
        if self._packs[-1] is pack:
            with self._lock:
                if self._packs[-1] is pack:
                    self._is_filling = False

    def _store(self, pack: _Pack) -> None:
        """Return when a pack is stored. Of the threads that wait for one pack, one uploads it."""
        self._uploads.store(pack, partial(self._end_pack, pack))

    def _store_all(self, *also: Callable[[], object]) -> None:
        """Return when all packs are stored, and something else is done meanwhile. Raises `OSError`."""
        works: list[Callable[[], object]] = [
            *also,
            *[partial(self._store, pack) for pack in self._packs if not pack.is_uploaded],
        ]
        deque(in_parallel(operator.call, works), maxlen=0)
        self._uploads.wait()
        self._check()

    def publish(self) -> None:
        """Let the other processes of the transaction find every frame, from now on as soon as it is appended.

        Of participants other than 0, the first frame says who they are; it is uploaded with the next.
        """
        with self._lock:
            if self._uploads.is_published:
                return
            self._check()
            if self._participant:
                self._hold(self._packs[0].first_value())
            elif self._lease is None:
                self._hold(b"")
            else:
                self._storage.objects.put(self.path, [self._own_content()])
            self._uploads.is_published = True
        if not self._participant and self._lease is not None:
            self._store_all(self._lease.say_committing)  # from now on, another writer's file becomes the commit

    def flush(self) -> None:
        """Return when all that was appended by now is stored, be it by other threads. Raises `OSError`."""
        if self._uploads.is_published:
            self._store_all()

    # --- reading

    def read(self, staged: Staged) -> bytes:
        """Return a value that was appended here. Raises `CorruptionError` if it is no longer what was written."""
        number, offset = packfile.split_offset(staged.offset)
        if not number:
            return (self._own_file if self._aside is None else self._aside[0]).read(staged)
        pack = self._packs[number - 1]
        value = pack.value(offset)
        if value is None:  # it is uploaded
            value = self._storage.read_range(pack.path, offset, staged.length) if staged.length else b""
        if len(value) != staged.length or crc32c(value) != staged.checksum:
            raise CorruptionError(pack.path, offset=offset, reason="a staged value is not what was uploaded")
        return value

    # --- the commit's own file

    def write_at(self, offset: int, content: Buffer) -> None:
        """Write what follows the frames: sections, header, footer. A later frame overwrites it."""
        self._own_file.write_at(offset, content)

    def finish(self, length: int) -> None:
        """Upload what is left, and end the commit's own file here."""
        with self._lock:
            self._check()
            self._is_filling = False
        if self._lease is None or self._participant:
            self._store_all()
        else:
            self._store_all(self._lease.say_committing)
        if not self._participant:
            self._own_file.finish(length)

    def sync(self) -> None:
        """What was uploaded is durable."""

    def create(self) -> None:
        """Let others see that this process stages. Raises `FileExistsError` if another process is this participant."""
        with self._lock:
            self._hold(b"")

    def close(self, *, deletes: bool = True) -> bool:
        """Let others see that this process stages no more; return whether there is anything to be deleted.

        `deletes`: the lease, too, which the caller deletes otherwise.
        """
        if not self._uploads.are_ours:
            return False
        if self._lease is not None:
            self._lease.close(deletes=deletes)
        return self._own_file.close() or self._lease is not None

    def release(self) -> None:
        """Let others see that this process stages no more: what was committed is referred to.

        No caller waits for that.
        """
        if self.close(deletes=False):
            self._storage.staged.forget(self.path)  # of packs that were copied, it is in no version
            self._storage.dispatch.clean_up_later(partial(self._storage.delete, self.path))  # with the lease

    def close_between_reads(self) -> None:
        if self._participant:
            self.close()
        elif self._lease is not None:
            self.release()

    def drop(self) -> None:
        """Delete what was uploaded: no commit will refer to it. Raises `OSError`."""
        if not self._uploads.are_ours:
            return
        self._uploads.fail(OSError("the transaction was rolled back"))
        self._uploads.wait()  # no process would find an upload that ends later
        for pack in list(self._packs):
            with pack.uploading:
                pack.is_uploaded = True
        if self.close():
            self._storage.staged.forget(self.path)
            self._storage.objects.delete([self.path, *[pack.path for pack in self._packs]])


class _PackUploads:
    """The uploads of one writer, a few at a time: in the background, or by a thread that waits. Safe in threads."""

    def __init__(self, storage: RemoteStorage) -> None:
        self.room = _Room()
        #: Whether other processes look for frames before the commit: then each pack ends with a list of its own.
        self.is_published = False
        self._storage = storage
        self._error: OSError | None = None
        self._background: set[Future[None]] = set()
        self._stores = threading.Semaphore(UPLOADS)
        self._process = os.getpid()

    @property
    def are_ours(self) -> bool:
        """Whether they are this process's, and not those of its parent."""
        return self._process == os.getpid()

    def check(self) -> None:
        """Raise `OSError` if an upload has failed, or after a fork."""
        if self._error is not None:
            raise OSError(
                f"an upload of this transaction failed before ({self._error}): call rollback(), then write again"
            ) from self._error
        if not self.are_ours:
            raise OSError("this transaction was begun before the fork: its uploads are the parent's")

    def fail(self, error: OSError) -> None:
        """Let no more be uploaded."""
        self._error = self._error or error

    def wait(self) -> None:
        """Wait for the uploads in the background."""
        wait(list(self._background))

    def begin(self, pack: _Pack) -> None:
        """Upload a pack in the background, in the room that was taken for it."""
        length = pack.end
        try:
            future = executor("upload", 2 * UPLOADS).submit(carried(self._upload), pack, length)
        except BaseException:
            self.room.give_back(length)
            raise
        self._background.add(future)
        future.add_done_callback(self._background.discard)

    def _upload(self, pack: _Pack, length: int) -> None:
        try:
            with pack.uploading:
                if not pack.is_uploaded:
                    pack.upload(self._storage, is_published=self.is_published)
        except OSError as error:
            self.fail(error)
        finally:
            self.room.give_back(length)

    def store(self, pack: _Pack, end: Callable[[], None]) -> None:
        """Return when a pack is stored. `end` is called before this thread uploads it: no frame may follow."""
        with pack.uploading:
            if pack.is_uploaded:
                return
            with self._stores:
                end()
                try:
                    pack.upload(self._storage, is_published=self.is_published)
                except OSError as error:
                    self.fail(error)
                    raise

    def begin_long(self, pack: _Pack, store: Callable[[_Pack], None]) -> None:
        """Upload a pack that ends with a value which the caller has: in the background, if there is room for a copy.

        Otherwise `store` uploads it at once.
        """
        try:
            if self.is_published or not self.room.take_now(pack.end):
                store(pack)
                return
            try:
                pack.keep_last()
            except BaseException:
                self.room.give_back(pack.end)
                raise
        except BaseException as error:  # never after this: the value may be another by then
            self.fail(OSError(f"an upload was interrupted ({type(error).__name__})"))
            raise
        self.begin(pack)


class _Room:
    """The uploads that are under way: their number and bytes are bounded. Safe in threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._uploads = self._bytes = 0

    def take(self, length: int) -> None:
        """Wait until there is room for an upload. One that is larger than all of it waits until it is alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._uploads or self._fits(length))
            self._uploads += 1
            self._bytes += length

    def take_now(self, length: int) -> bool:
        """Take room for an upload if there is any."""
        with self._changed:
            if self._uploads and not self._fits(length):
                return False
            self._uploads += 1
            self._bytes += length
            return True

    def _fits(self, length: int) -> bool:
        return self._uploads < UPLOADS and self._bytes + length <= UPLOAD_BYTES

    def give_back(self, length: int) -> None:
        with self._changed:
            self._uploads -= 1
            self._bytes -= length
            self._changed.notify_all()


class _Pack:
    """One data pack, in memory until it is uploaded."""

    def __init__(
        self, transaction: bytes, number: int, repository_id: bytes, nth: int, first: int, frames: bytes = b""
    ) -> None:
        """`frames`, which the pack begins with, were numbered from `first` on."""
        pack_id = packfile.participants_pack(transaction, number)
        self.path = names.data_pack_path(pack_id)
        self._lengths: dict[int, int] = {}  # of the values, by their offsets
        self.end = packfile.HEAD_SIZE + len(frames)
        self._nth = nth
        self._first = first
        self._content = bytearray(packfile.encode_head(pack_id, repository_id, number, first) + frames)
        self._heads: list[bytes] = []
        self._last: tuple[int, Buffer] | None = None  # the value that ends it, if that is long, and its offset
        self.uploading = processes.new_lock()
        self.is_uploaded = False

    def append(
        self,
        kind: int,
        key: bytes,
        view: memoryview,
        seen: Seen,
        sequence: int,
        region: bytes = b"",
        *,
        checksum: int,
        is_last: bool = False,
    ) -> Staged:
        """Append one frame; the writer's lock is held. The value is copied, unless this `is_last`."""
        start, length = self.end, len(view)
        head, offset, end = lay_frame(start, kind, seen, sequence - self._first, key, length, checksum, region)
        parts = frame_parts(start, head, offset, view, end)
        if is_last:
            self._last, parts = (offset, view), parts[:2]
        for part in parts:
            self._content += part
        self._heads.append(head)
        self._lengths[offset] = length
        self.end = end
        return Staged(packfile.join_offset(self._nth, offset), length, checksum, sequence)

    def value(self, offset: int) -> bytes | None:
        """Return a value that was appended; None if it is uploaded."""
        last = self._last
        if last is not None and offset == last[0]:
            return bytes(last[1])
        length = self._lengths.get(offset)
        # The pack may be uploaded between the two looks.
        content = None if length is None else self._content[offset : offset + length]
        return None if content is None or len(content) != length else bytes(content)

    def first_value(self) -> bytes:
        return self.value(next(iter(self._lengths))) or b""

    def keep_last(self) -> None:
        """Copy the value that ends the pack: the caller goes on."""
        with self.uploading:
            if self._last is not None:  # else somebody has uploaded it meanwhile
                offset, value = self._last
                content = np.frombuffer(value, np.uint8)
                # Without the interpreter's lock, which making or filling a bytearray would keep all the while.
                kept = np.empty_like(content)
                np.copyto(kept, content)
                self._last = offset, kept.data

    def upload(self, storage: RemoteStorage, *, is_published: bool) -> None:
        """Write the object; the caller holds `uploading`, and no thread appends. Raises `OSError`."""
        directory = [packfile.encode_directory(self._heads, self.end)] if is_published else []
        storage.objects.put(self.path, [self._content, *self._tail(), *directory])
        self.is_uploaded = True
        self._content, self._heads, self._lengths, self._last = bytearray(), [], {}, None

    def _tail(self) -> list[Buffer]:
        if self._last is None:
            return []
        offset, value = self._last
        return [value, bytes(self.end - offset - memoryview(value).nbytes)]
