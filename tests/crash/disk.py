"""A disk in memory that remembers what was done to it, and what a loss of power may leave of that.

The model. Each call of a program does one or two of these things to the disk: it changes the names in a directory (a name
enters it, leaves it, or moves inside it), it changes the content of a file (writes bytes, changes its size), or it syncs
the content of one file, or the names of one directory. Nothing else makes anything durable. What POSIX promises is
taken, and no more; ext4, XFS and btrfs leave a part of what is generated here:

- What was done before the sync of the file or directory that it was done to, is there. A sync of a file does not make its
  name durable, nor does that of a directory the content of the files in it, nor its own name in the directory above.
- Of what has happened to the names of directories since, any subset is there, each part of it in the order that it happened
  in. So a file whose content is durable may have no name, or two, or one that it was given before. What moves inside one
  directory moves at once. A move from one directory to another is two changes, of which either may be there alone: such a
  file can be lost. (File systems with a journal leave what happened up to some moment: this is generated as well.)
- The content of a file that was not synced is, in each sector of 512 bytes by itself, what it was after any of the writes
  since its last sync, or before them. Its size is any that it has had since. Where it had no content it is zero: a file
  may have the right size and hold nothing. A sector is never half old and half new.
- What is made of inodes and names is consistent: a journal, or `fsck`, sees to that. A file that has no name is gone.

Nothing is assumed of the order in which different files and directories come to the disk.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

SECTOR = 512
ROOT = 1  # the inode of the directory that the repository is made in


class Enter(NamedTuple):
    """A name enters a directory."""

    directory: int
    name: str
    inode: int


class Leave(NamedTuple):
    directory: int
    name: str


class Move(NamedTuple):
    """A name becomes another one in the same directory."""

    directory: int
    old: str
    name: str
    inode: int


class Write(NamedTuple):
    inode: int
    offset: int
    content: bytes


class Resize(NamedTuple):
    inode: int
    length: int


class Sync(NamedTuple):
    """The content of a file becomes durable."""

    inode: int


class SyncNames(NamedTuple):
    """The names of a directory become durable."""

    directory: int


Naming = Enter | Leave | Move
Change = Naming | Write | Resize | Sync | SyncNames


class Step(NamedTuple):
    """What one call has done. The power may be lost after any of them."""

    call: str
    path: str
    site: str  # which lines of the product it came from
    changes: tuple[Change, ...]


Tree = tuple[dict[int, dict[str, int]], dict[int, bytes]]  # the directories and the files, by inode


class Disk:
    """What programs see: all that was done, durable or not; and the record of it since `start`."""

    def __init__(self, start: Tree | None = None, steps: list[Step] | None = None) -> None:
        self.start: Tree = start or ({ROOT: {}}, {})
        self.directories = {inode: dict(entries) for inode, entries in self.start[0].items()}
        self.files: dict[int, bytes | bytearray] = dict(self.start[1])
        self._next = max((*self.directories, *self.files)) + 1
        self.steps: list[Step] = []
        for step in steps or ():
            self.record(step)

    def new_inode(self) -> int:
        self._next += 1
        return self._next

    def record(self, step: Step) -> None:
        """Do what a step does."""
        self.steps.append(step)
        for change in step.changes:
            if isinstance(change, Enter):
                self._next = max(self._next, change.inode)
                self.directories[change.directory][change.name] = change.inode
            elif isinstance(change, Leave):
                self.directories[change.directory].pop(change.name, None)
            elif isinstance(change, Move):
                self.directories[change.directory].pop(change.old, None)
                self.directories[change.directory][change.name] = change.inode
            elif isinstance(change, Write | Resize):
                content = self.files.get(change.inode, b"")
                if not isinstance(content, bytearray):
                    content = bytearray(content)
                self.files[change.inode] = content
                _alter(content, change)
            if isinstance(change, Enter) and change.inode not in self.files and change.inode not in self.directories:
                if step.call == "mkdir":
                    self.directories[change.inode] = {}
                else:
                    self.files[change.inode] = b""

    def names_of(self, inode: int) -> int:
        """How many names a file has."""
        return sum(found == inode for entries in self.directories.values() for found in entries.values())

    def tree(self) -> dict[str, bytes | None]:
        """Everything by path: the contents of files, None for directories."""
        return dict(self._walk(ROOT, ""))

    def _walk(self, directory: int, path: str) -> Iterator[tuple[str, bytes | None]]:
        for name, inode in sorted(self.directories[directory].items()):
            if inode in self.directories:
                yield path + name, None
                yield from self._walk(inode, f"{path}{name}/")
            else:
                yield path + name, bytes(self.files[inode])


def _alter(content: bytearray, change: Write | Resize) -> None:
    if isinstance(change, Write):
        if len(content) < change.offset:
            content.extend(bytes(change.offset - len(content)))
        content[change.offset : change.offset + len(change.content)] = change.content
    elif change.length < len(content):
        del content[change.length :]
    else:
        content.extend(bytes(change.length - len(content)))


class Image(NamedTuple):
    """What one loss of power has left."""

    kept: str  # how it was chosen, for whoever has to look into a failure
    tree: Tree
    identity: int  # equal for equal images of one record


class PowerLoss:
    """What may be left when the power is lost after some steps: `advance` goes from one step to the next."""

    def __init__(self, start: Tree) -> None:
        self._directories = {inode: dict(entries) for inode, entries in start[0].items()}  # as they are durable
        self._files = dict(start[1])
        self._is_directory = set(start[0])
        self.names: list[Naming] = []  # what is not durable, in the order that it happened in
        self.contents: dict[int, list[Write | Resize]] = {}
        self._versions: dict[int, list[bytes]] = {}

    def advance(self, step: Step) -> None:
        for change in step.changes:
            if isinstance(change, SyncNames):
                entries = self._directories.setdefault(change.directory, {})
                for each in self.names:
                    if each.directory == change.directory:
                        _rename(entries, each)
                self.names = [each for each in self.names if each.directory != change.directory]
            elif isinstance(change, Sync):
                if change.inode in self.contents:
                    self._files[change.inode] = self.versions(change.inode)[-1]
                    del self.contents[change.inode], self._versions[change.inode]
            elif isinstance(change, Write | Resize):
                self.contents.setdefault(change.inode, []).append(change)
                self._versions.pop(change.inode, None)
            else:
                self.names.append(change)
                if isinstance(change, Enter) and step.call == "mkdir":
                    self._is_directory.add(change.inode)

    def versions(self, inode: int) -> list[bytes]:
        """Return what a file held at its last sync, and after each change since."""
        found = self._versions.get(inode)
        if found is None:
            content = bytearray(self._files.get(inode, b""))
            found = [bytes(content)]
            for change in self.contents.get(inode, ()):
                _alter(content, change)
                found.append(bytes(content))
            self._versions[inode] = found
        return found

    def all_kept(self) -> Image:
        """What is there when only the programs have died, or the system came to write everything."""
        return self._image("everything", range(len(self.names)), {})

    def images(self, chance: random.Random, most: int) -> Iterator[Image]:
        """Yield images: the systematic ones first, then random ones. Some of them may be equal."""
        count = len(self.names)
        every = range(count)
        zeros = {inode: self._hollow(inode) for inode in self.contents}
        old = {inode: self.versions(inode)[0] for inode in self.contents}
        yield self._image("what was synced", (), old)
        yield self.all_kept()
        yield self._image("all names, only synced contents", every, old)
        yield self._image("all names and sizes, only synced contents", every, zeros)
        for omitted in every:
            # The last ones first: they are what is being built upon just now.
            kept = [number for number in every if number != count - 1 - omitted]
            yield self._image(f"all but {self.names[count - 1 - omitted]}", kept, {})
        for number in reversed(every):
            yield self._image(f"of names only {self.names[number]}", (number,), {})
        for inode in self.contents:
            yield self._image(f"all but the content of {inode}", every, {inode: old[inode]})
            yield self._image(f"all but the content of {inode}, sized", every, {inode: zeros[inode]})
            yield self._image(f"{inode} torn", every, {inode: self._torn(inode, chance)})
        for end in reversed(every):
            yield self._image(f"the first {end} names", range(end), {})
            yield self._image(f"the first {end} names, torn", range(end), self._all_torn(chance))
        directories = sorted({change.directory for change in self.names})
        for directory in directories:
            kept = [number for number in every if self.names[number].directory != directory]
            yield self._image(f"all but the names in {directory}", kept, {})
        if count or self.contents:
            for _ in range(most):
                likely = chance.choice((0.2, 0.5, 0.8))
                kept = [number for number in every if chance.random() < likely]
                yield self._image(f"names {kept}, torn at random", kept, self._all_torn(chance))

    def _all_torn(self, chance: random.Random) -> dict[int, bytes]:
        return {inode: self._torn(inode, chance) for inode in self.contents if chance.random() < 0.7}  # noqa: PLR2004

    def _hollow(self, inode: int) -> bytes:
        """The file has its new size, and nothing in it that was not synced."""
        versions = self.versions(inode)
        old, length = versions[0], len(versions[-1])
        return old[:length] + bytes(max(0, length - len(old)))

    def _torn(self, inode: int, chance: random.Random) -> bytes:
        versions = self.versions(inode)
        length = len(chance.choice(versions))
        torn = bytearray()
        while len(torn) < length:
            # Not every sector by itself where there are many: runs of them, as they are written.
            run = SECTOR * chance.choice((1, 1, 1, max(1, length // SECTOR // 4)))
            part = chance.choice(versions)[len(torn) : len(torn) + run]
            torn += part.ljust(min(run, length - len(torn)), b"\0")
        return bytes(torn[:length])

    def _image(self, kept: str, names: Iterator[int] | range | list[int] | tuple[int, ...], contents: dict[int, bytes]) -> Image:
        entries = {inode: dict(found) for inode, found in self._directories.items()}
        for number in names:
            change = self.names[number]
            _rename(entries.setdefault(change.directory, {}), change)
        directories: dict[int, dict[str, int]] = {}
        files: dict[int, bytes] = {}
        seen = []
        left = [ROOT]
        while left:
            directory = left.pop()
            if directory in directories:
                continue
            found = directories[directory] = entries.get(directory, {})
            seen.append((directory, frozenset(found.items())))
            for inode in found.values():
                if inode in self._is_directory:
                    left.append(inode)
                elif inode not in files:
                    content = contents.get(inode)
                    files[inode] = self.versions(inode)[-1] if content is None else content
        identity = hash((frozenset(seen), frozenset(files.items())))
        return Image(kept, (directories, files), identity)


def _rename(entries: dict[str, int], change: Naming) -> None:
    if isinstance(change, Move):
        entries.pop(change.old, None)
    if isinstance(change, Leave):
        entries.pop(change.name, None)
    else:
        entries[change.name] = change.inode
