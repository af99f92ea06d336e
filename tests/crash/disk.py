"""A disk in memory that remembers what was done to it, and what a loss of power may leave of that.

The model. Each call of a program does one or two of these things to the disk: it changes the names in a directory (a
name enters it, leaves it, or moves inside it), it changes the content of a file (writes bytes, changes its size), or
it syncs the content of one file, or the names of one directory. Nothing else makes anything durable. What POSIX
promises is taken, and no more; ext4, XFS and btrfs leave a part of what is generated here:

- What was done before the sync of the file or directory that it was done to, is there. A sync of a file does not make
  its name durable, nor does that of a directory the content of the files in it, nor its own name in the directory
  above.
- Of what has happened to the names of directories since, any subset is there, each part of it in the order that it
  happened in. So a file whose content is durable may have no name, or two, or one that it was given before. What
  moves inside one directory moves at once. A move from one directory to another is two changes, of which either may
  be there alone: such a file can be lost. (File systems with a journal leave what happened up to some moment: this is
  generated as well.)
- The content of a file that was not synced is, in each sector of 512 bytes by itself, what it was after any of the
  writes since its last sync, or before them. Its size is any that it has had since. Where it had no content it is
  zero: a file may have the right size and hold nothing. A sector is never half old and half new.
- What is made of inodes and names is consistent: a journal, or `fsck`, sees to that. A file that has no name is gone.

Nothing is assumed of the order in which different files and directories come to the disk.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
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
        self.next = max((*self.directories, *self.files)) + 1
        self.steps: list[Step] = []
        for step in steps or ():
            self.record(step)

    def new_inode(self) -> int:
        self.next += 1
        return self.next

    def record(self, step: Step) -> None:
        """Do what a step does."""
        self.steps.append(step)
        for change in step.changes:
            if isinstance(change, Enter):
                self.next = max(self.next, change.inode)
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

    def image(self) -> Tree:
        """Everything that is there now."""
        directories = {inode: dict(found) for inode, found in self.directories.items()}
        return directories, {inode: bytes(content) for inode, content in self.files.items()}

    def names_of(self, inode: int) -> int:
        """How many names a file has."""
        return sum(found == inode for entries in self.directories.values() for found in entries.values())

    def tree(self) -> dict[str, bytes | None]:
        """Everything by path: the contents of files, None for directories."""
        return dict(self.walk(ROOT, ""))

    def walk(self, directory: int, path: str) -> Iterator[tuple[str, bytes | None]]:
        for name, inode in sorted(self.directories[directory].items()):
            if inode in self.directories:
                yield path + name, None
                yield from self.walk(inode, f"{path}{name}/")
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


OLD, HOLLOW, TORN = "as it was synced", "as long as it was, but empty", "torn"


class Choice(NamedTuple):
    """What a loss of power keeps of what was not durable."""

    kept: str  # in words, for whoever has to look into a failure
    names: Sequence[int]  # of the changes of names, by their numbers
    contents: Mapping[int, str]  # how those files are that are not as they were


class Image(NamedTuple):
    """What one loss of power has left."""

    kept: str
    tree: Tree
    identity: int  # equal for equal images of one record


class PowerLoss:
    """What may be left when the power is lost after some steps: `advance` goes from one step to the next."""

    def __init__(self, start: Tree) -> None:
        self.directories = {inode: dict(entries) for inode, entries in start[0].items()}  # as they are durable
        self.files = dict(start[1])
        self.is_directory = set(start[0])
        self.names: list[Naming] = []  # what is not durable, in the order that it happened in
        self.contents: dict[int, list[Write | Resize]] = {}
        self._versions: dict[int, list[bytes]] = {}

    def advance(self, step: Step) -> None:
        for change in step.changes:
            if isinstance(change, SyncNames):
                entries = self.directories.setdefault(change.directory, {})
                for each in self.names:
                    if each.directory == change.directory:
                        _rename(entries, each)
                self.names = [each for each in self.names if each.directory != change.directory]
            elif isinstance(change, Sync):
                if change.inode in self.contents:
                    self.files[change.inode] = self.versions(change.inode)[-1]
                    del self.contents[change.inode], self._versions[change.inode]
            elif isinstance(change, Write | Resize):
                self.contents.setdefault(change.inode, []).append(change)
                self._versions.pop(change.inode, None)
            else:
                self.names.append(change)
                if isinstance(change, Enter) and step.call == "mkdir":
                    self.is_directory.add(change.inode)

    def versions(self, inode: int) -> list[bytes]:
        """Return what a file held at its last sync, and after each change since."""
        found = self._versions.get(inode)
        if found is None:
            content = bytearray(self.files.get(inode, b""))
            found = [bytes(content)]
            for change in self.contents.get(inode, ()):
                _alter(content, change)
                found.append(bytes(content))
            self._versions[inode] = found
        return found

    def all_kept(self, replaced: Mapping[str, bytes | None] | None = None) -> Image:
        """What is there when only the programs have died, or the system came to write everything.

        `replaced`: other contents of some files, by path; None deletes.
        """
        image = self._image("everything", range(len(self.names)), {})
        if not replaced:
            return image
        directories, files = image.tree
        for path, content in replaced.items():
            directory, name = self.find(directories, path)
            if directory is None or name not in directories[directory]:
                continue
            if content is None:
                del directories[directory][name]
            else:
                files[directories[directory][name]] = content
        return Image(f"everything, but {replaced}", image.tree, hash((image.identity, *replaced.values())))

    @staticmethod
    def find(directories: dict[int, dict[str, int]], path: str) -> tuple[int | None, str]:
        *parents, name = path.split("/")
        directory: int | None = ROOT
        for parent in parents:
            directory = None if directory is None else directories[directory].get(parent)
        return directory, name

    def versions_of(self, path: str) -> list[bytes]:
        """Return the contents that a file has had since its last sync, none if it is not there."""
        directories = self._image("everything", range(len(self.names)), {}).tree[0]
        directory, name = self.find(directories, path)
        inode = None if directory is None else directories[directory].get(name)
        return [] if inode is None else self.versions(inode)

    def choices(self, chance: random.Random, most: int) -> list[Choice]:
        """Return what may be kept: the systematic choices first, then random ones. Some lead to equal images."""
        count = len(self.names)
        every = range(count)
        files = list(self.contents)
        hollow, old = dict.fromkeys(files, HOLLOW), dict.fromkeys(files, OLD)
        found = [
            Choice("what was synced", (), old),
            Choice("everything", every, {}),
            Choice("all names, only synced contents", every, old),
            Choice("all names and sizes, only synced contents", every, hollow),
        ]
        for number in every:
            kept = [other for other in every if other != number]
            found.append(Choice(f"all but {self.names[number]}", kept, {}))
            found.append(Choice(f"of names only {self.names[number]}", (number,), {}))
            found.append(Choice(f"the first {number} names", range(number), {}))
            torn = {inode: TORN for inode in files if chance.random() < 0.7}
            found.append(Choice(f"the first {number} names, torn", range(number), torn))
        for inode in files:
            for how in (OLD, HOLLOW, TORN):
                found.append(Choice(f"everything, but file {inode} is {how}", every, {inode: how}))
        for directory in {change.directory for change in self.names}:
            kept = [number for number in every if self.names[number].directory != directory]
            found.append(Choice(f"all but the names in {directory}", kept, {}))
        for _ in range(most if count or files else 0):
            likely = chance.choice((0.2, 0.5, 0.8))
            kept = [number for number in every if chance.random() < likely]
            torn = {inode: chance.choice((OLD, HOLLOW, TORN)) for inode in files if chance.random() < 0.7}
            found.append(Choice(f"names {kept}, files {torn}", kept, torn))
        return found

    def image(self, choice: Choice, chance: random.Random) -> Image:
        contents = {inode: self.content(inode, how, chance) for inode, how in choice.contents.items()}
        return self._image(choice.kept, choice.names, contents)

    def content(self, inode: int, how: str, chance: random.Random) -> bytes:
        if how == OLD:
            return self.versions(inode)[0]
        return self.hollow(inode) if how == HOLLOW else self.torn(inode, chance)

    def hollow(self, inode: int) -> bytes:
        """The file has its new size, and nothing in it that was not synced."""
        versions = self.versions(inode)
        old, length = versions[0], len(versions[-1])
        return old[:length] + bytes(max(0, length - len(old)))

    def torn(self, inode: int, chance: random.Random) -> bytes:
        versions = self.versions(inode)
        length = len(chance.choice(versions))
        torn = bytearray()
        while len(torn) < length:
            # Not every sector by itself where there are many: runs of them, as they are written.
            run = SECTOR * chance.choice((1, 1, 1, max(1, length // SECTOR // 4)))
            part = chance.choice(versions)[len(torn) : len(torn) + run]
            torn += part.ljust(min(run, length - len(torn)), b"\0")
        return bytes(torn[:length])

    def _image(self, kept: str, names: Sequence[int], contents: Mapping[int, bytes]) -> Image:
        entries = {inode: dict(found) for inode, found in self.directories.items()}
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
                if inode in self.is_directory:
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
