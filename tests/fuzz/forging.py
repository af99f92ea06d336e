"""A writer of repositories that lie: every checksum and hash in them is right, whatever they say.

`Forged.read` takes a repository apart into frames, runs, headers and small files; a caller changes what it likes;
`write` puts it together again: offsets, lengths, checksums and the hashes of parents follow from what is there then,
but for what was set by hand. It checks nothing, and shares no code with the writers of the product but the layout of
fields.
"""

from __future__ import annotations

import json
import pickle
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txstore._native import index_fallback
from txstore.format import commitfile, encoding, names, packfile, records
from txstore.format.commitfile import DataPack, RunName, Section
from txstore.format.encoding import CHECKSUM, crc32c, encode_varint
from txstore.format.packfile import PackName, Predecessor

U64 = (1 << 64) - 1
#: Types of the fields of a header.
BRANCH, AUTHOR, MESSAGE, PROPERTIES, STATISTICS, SECTIONS, RUNS, PACKS, PENDING, CONSTRAINTS = range(1, 11)

Files = dict[str, bytes]


@dataclass
class Frame:
    """`length` and `checksum`: what it says of its value, if that is not so."""

    kind: int
    seen: int | Predecessor
    sequence: int
    key: bytes
    value: bytes
    length: int | None = None
    checksum: int | None = None
    region: bytes = b""  # of a partial frame


@dataclass
class Entry:
    """`of`: the pack and number of the frame that it leads to, and that offset, length and checksum are taken from."""

    key: bytes
    kind: int
    seq: int = 0
    pack: int = 0
    offset: int = 0
    length: int = 0
    checksum: int = 0
    of: tuple[str, int] | None = None


@dataclass
class Run:
    """`restart_every` bounds nothing that is read; `trailer` is what the trailer says instead of the truth."""

    entries: list[Entry] = field(default_factory=list)
    prefixes: list[tuple[bytes, int]] = field(default_factory=list)
    packs: list[bytes] = field(default_factory=list)
    block_bytes: int = index_fallback.BLOCK_BYTES
    restart_every: int = index_fallback.RESTART_EVERY
    trailer: dict[int, Any] = field(default_factory=dict)  # by the number of the field
    max_seq: int | None = None


_NOWHERE = RunName(None, 0, 0, 0, 0, 0)


@dataclass
class Listed:
    """A run that a header lists: `says` is what of it is not so. `of`: the file and section that it lies in."""

    of: tuple[str, int] | None = None
    name: RunName = _NOWHERE  # without `of`, or if there is no such section
    says: dict[str, Any] = field(default_factory=dict)


@dataclass
class Pack:
    """A commit file, or, without `fixed`, a data pack.

    Of a compaction output, the one section is the value of its frame.
    """

    id: bytes
    repository: bytes
    number: int = 0
    first: int = 0
    frames: list[Frame] = field(default_factory=list)
    sections: list[Run | bytes] = field(default_factory=list)
    fixed: list[Any] | None = None  # of the header, as it is packed
    fields: list[tuple[int, bytes]] = field(default_factory=list)  # without sections and runs
    runs: list[Listed] = field(default_factory=list)
    places: dict[tuple[str, int], int] = field(default_factory=dict)  # of the sections, as it was read
    more_sections: list[Section] = field(default_factory=list)
    is_child: bool = True  # of the commit in the version below: the hash of its parent is made to fit

    def set(self, kind: int, content: bytes) -> None:
        self.fields = sorted([*(item for item in self.fields if item[0] != kind), (kind, content)])

    def get(self, kind: int) -> bytes:
        return dict(self.fields).get(kind, b"")


# Of `Pack.fixed`, as `format.HEADER` has them.
REQUIRED, OPTIONAL, REPOSITORY, ID, PARENT_ID, PARENT_HASH, VERSION, SEQ, OLDEST_KEPT, TIME = range(3, 13)


@dataclass
class Forged:
    """A repository in parts. `others` are the files that are no packs, as they are."""

    packs: dict[str, Pack] = field(default_factory=dict)
    others: Files = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> Forged:
        found = cls()
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                name = path.relative_to(directory).as_posix()
                if names.is_commit_path(name) or name.startswith(names.PACKS) or _is_staged(name):
                    found.packs[name] = _take_apart(path.read_bytes(), names.is_commit_path(name))
                elif name.partition("/")[0] != names.LOCKS:
                    found.others[name] = path.read_bytes()
        found._refer()
        return found

    def copy(self) -> Forged:
        copied: Forged = pickle.loads(pickle.dumps(self))
        return copied

    @staticmethod
    def copy_pack(pack: Pack) -> Pack:
        copied: Pack = pickle.loads(pickle.dumps(pack))
        return copied

    def with_own(self, path: str) -> Forged:
        """Return the same with a copy of one pack, to be changed; the others stay as they are."""
        return Forged({**self.packs, path: self.copy_pack(self.packs[path])}, self.others)

    def file(self, path: str) -> bytes:
        """Return one file. What it refers to by hash is as it was read."""
        offsets = {each: _lay_out(pack) for each, pack in self.packs.items()}
        return self._encode(path, offsets, {})[0]

    @property
    def commits(self) -> list[str]:
        """The paths of the commit files, the oldest first."""
        return sorted(path for path, pack in self.packs.items() if pack.fixed is not None)

    def move(self, path: str, version: int) -> str:
        """Put a commit in another version, with the seq that goes with it; return its path."""
        pack = self.packs.pop(path)
        pack.fixed[VERSION], pack.fixed[SEQ] = version, version + 1
        moved = names.commit_path("main", version)
        self.packs[moved] = pack
        for other in self.packs.values():
            for listed in other.runs:
                if listed.of is not None and listed.of[0] == path:
                    listed.of = moved, listed.of[1]
            for run in other.sections:
                for entry in run.entries if isinstance(run, Run) else ():
                    if entry.of is not None and entry.of[0] == path:
                        entry.of = moved, entry.of[1]
        return moved

    def _refer(self) -> None:
        """Let entries follow the frames that they lead to."""
        frames = {
            (path, offset): number
            for path, pack in self.packs.items()
            for number, offset in enumerate(_lay_out(pack)[0])
        }
        for path, pack in self.packs.items():
            for run in pack.sections:
                if isinstance(run, Run):
                    for entry in run.entries:
                        file = path if not entry.pack else PackName.decode(run.packs[entry.pack - 1]).path
                        number = frames.get((file, entry.offset))
                        if entry.kind != packfile.REF_TOMBSTONE and number is not None and entry.length:
                            entry.of = file, number
            for listed in pack.runs:
                if listed.name.pack is not None:
                    file = listed.name.pack.path
                    if file in self.packs:
                        listed.of = next(
                            (of for of, at in self.packs[file].places.items() if at == listed.name.offset), None
                        )

    def write(self, directory: Path) -> None:
        for name, content in self.files().items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for name in names.DIRECTORIES:
            (directory / name).mkdir(parents=True, exist_ok=True)

    def files(self) -> Files:
        files = dict(self.others)
        offsets = {path: _lay_out(pack) for path, pack in self.packs.items()}
        hashes: dict[str, bytes] = {}
        placed: dict[tuple[str, int], RunName] = {}
        for path, pack in self.packs.items():
            if pack.fixed is None and pack.sections and pack.frames:
                [section], frame = pack.sections, pack.frames[0]
                frame.value = section if isinstance(section, bytes) else self.encode_run(section, offsets)
                offsets[path] = _lay_out(pack)
                count = len(section.entries) if isinstance(section, Run) else 0
                placed[path, 0] = RunName(None, 0, offsets[path][0][0], len(frame.value), count, 0)
        for path in sorted(self.packs, key=lambda path: (not names.is_commit_path(path), path)):
            pack = self.packs[path]
            if pack.fixed is not None and pack.is_child:
                below = names.commit_path("main", max(pack.fixed[VERSION] - 1, 0))
                if below in hashes and below != path:
                    pack.fixed[PARENT_ID], pack.fixed[PARENT_HASH] = self.packs[below].id, hashes[below]
            files[path], header = self._encode(path, offsets, placed)
            hashes[path] = commitfile.header_hash(header)
        return files

    def _encode(
        self, path: str, offsets: dict[str, tuple[list[int], int]], placed: dict[tuple[str, int], RunName]
    ) -> tuple[bytes, bytes]:
        pack = self.packs[path]
        content = bytearray(packfile.HEAD_SIZE)
        head = packfile.HEAD.pack(
            b"TXSTPACK", encoding.VERSION, pack.number & 0xFFFFFFFF, pack.id, pack.repository, pack.first
        )
        content[:] = encoding.with_checksum(head)
        for frame, offset in zip(pack.frames, offsets[path][0], strict=True):
            start = len(content)
            content += _encode_head_of(frame)
            content += bytes(offset - len(content)) + frame.value
            content += bytes(-len(content) % 8)
            assert start % 8 == 0
        if pack.fixed is None:
            return bytes(content), b""
        sections = []
        for number, section in enumerate(pack.sections):
            encoded = section if isinstance(section, bytes) else self.encode_run(section, offsets)
            sections.append(Section(commitfile.SECTION_RUN, len(content), len(encoded)))
            count = len(section.entries) if isinstance(section, Run) else 0
            placed[path, number] = RunName(None, 0, len(content), len(encoded), count, 0)
            content += encoded + bytes(-len(encoded) % 8)
        runs = [self.encode_listed(path, listed, placed) for listed in pack.runs]
        header = self.encode_header(pack, sections + pack.more_sections, runs)
        footer = commitfile.Footer(
            len(header), len(content), len(content) + len(header) + 64, pack.id, crc32c(header)
        ).encode()
        return bytes(content) + header + footer, header

    def encode_listed(self, path: str, listed: Listed, placed: dict[tuple[str, int], RunName]) -> bytes:
        name = listed.name
        if listed.of is not None and (there := placed.get(listed.of)) is not None:
            pack = self.packs[listed.of[0]]
            lies_in = PackName(pack.id) if pack.fixed is None else PackName(pack.id, "main", pack.fixed[VERSION])
            file = None if listed.of[0] == path else lies_in
            name = there._replace(pack=file, seq=name.seq, max_seq=name.max_seq)
        return _encode_run_name(name._replace(**listed.says))

    @staticmethod
    def encode_header(pack: Pack, sections: list[Section], runs: list[bytes]) -> bytes:
        assert pack.fixed is not None
        fixed = [
            each & (0xFFFF if i in (1, 2) else U64) if isinstance(each, int) else each
            for i, each in enumerate(pack.fixed)
        ]
        made = {
            SECTIONS: b"".join(encode_varint(number) for section in sections for number in section),
            RUNS: b"".join(runs),
        }
        fields = [*pack.fields, *((kind, content) for kind, content in made.items() if content)]
        typed = b"".join(commitfile.FIELD.pack(kind, len(content)) + content for kind, content in sorted(fields))
        return commitfile.HEADER.pack(*fixed) + typed

    def encode_run(self, run: Run, offsets: dict[str, tuple[list[int], int]]) -> bytes:
        entries = []
        for entry in run.entries:
            if entry.of is not None and entry.of[0] in self.packs and entry.of[1] < len(self.packs[entry.of[0]].frames):
                path, number = entry.of
                value = self.packs[path].frames[number].value
                entries.append((entry, offsets[path][0][number], len(value), crc32c(value)))
            else:
                entries.append((entry, entry.offset, entry.length, entry.checksum))
        return encode_run(run, entries)


def _is_staged(name: str) -> bool:
    return name.startswith(f"{names.STAGING}/") and names.parse_staging(name.partition("/")[2]) is not None


# --- taking apart
def _take_apart(content: bytes, is_commit: bool) -> Pack:
    pack_id, repository, number = packfile.decode_head(content[: packfile.HEAD_SIZE])
    pack = Pack(pack_id, repository, number, packfile.first_frame(content[: packfile.HEAD_SIZE]))
    end = len(content)
    header: commitfile.Header | None = None
    if is_commit:
        footer = commitfile.Footer.decode(content[-commitfile.FOOTER_SIZE :])
        encoded = content[footer.header_offset : footer.header_offset + footer.header_length]
        header = commitfile.Header.decode(encoded)
        end = min((section.offset for section in header.sections), default=footer.header_offset)
        pack.fixed = list(commitfile.HEADER.unpack_from(encoded))
        pack.fields = [item for item in _fields(encoded) if item[0] not in (SECTIONS, RUNS)]
    position, view = packfile.HEAD_SIZE, memoryview(content)
    while position < end:
        try:
            frame = packfile.decode_frame(view, position)
        except encoding.MalformedError:
            break  # preallocated, or half a frame
        value = content[frame.offset : frame.offset + frame.length]
        region = frame.region.encode()
        pack.frames.append(Frame(frame.kind, frame.seen, frame.sequence, frame.key, value, region=region))
        if frame.kind == packfile.FRAME_RUN:
            pack.frames[-1].checksum = frame.checksum
            pack.sections.append(_take_run_apart(value))
            pack.places = {(PackName(pack_id).path, 0): frame.offset}
        position = frame.end
    if header is not None:
        at = {section.offset: number for number, section in enumerate(header.sections)}
        for section in header.sections:
            pack.sections.append(_take_run_apart(content[section.offset : section.offset + section.length]))
        own = names.commit_path(header.branch, header.version)
        pack.places = {(own, number): offset for offset, number in at.items()}
        for run in header.runs:
            pack.runs.append(Listed((own, at[run.offset]) if run.pack is None else None, run))
    return pack


def _fields(header: bytes) -> list[tuple[int, bytes]]:
    found, at = [], commitfile.HEADER.size
    while at < len(header):
        kind, length = commitfile.FIELD.unpack_from(header, at)
        at += commitfile.FIELD.size
        found.append((kind, header[at : at + length]))
        at += length
    return found


def _take_run_apart(section: bytes) -> Run:
    run = index_fallback.Run(section, 1)
    entries = [Entry(*entry) for entry in run.scan(b"", None, -1)]
    for entry in entries:
        entry.seq = entry.seq if run._max_seq else 0
    return Run(entries, list(run._prefixes), run.packs)


# --- putting together
def _lay_out(pack: Pack) -> tuple[list[int], int]:
    """Where the values of the frames begin, and where the last frame ends."""
    offsets, position = [], packfile.HEAD_SIZE
    for frame in pack.frames:
        follows = isinstance(frame.seen, Predecessor)
        offset, end = packfile.frame_layout(position, len(frame.key), len(frame.value), follows, frame.region)
        offsets.append(offset)
        position = end
    return offsets, position


def _encode_head_of(frame: Frame) -> bytes:
    length = len(frame.value) if frame.length is None else frame.length & U64
    checksum = crc32c(frame.value) if frame.checksum is None else frame.checksum
    kind, sequence = frame.kind & 0xFF, frame.sequence & U64
    return packfile.encode_frame(kind, frame.seen, sequence, frame.key, length, checksum, frame.region)


def _encode_run_name(run: RunName) -> bytes:
    pack = b"" if run.pack is None else run.pack.encode()
    return encode_varint(len(pack)) + pack + b"".join(encode_varint(number & U64) for number in run[1:])


def encode_run(run: Run, entries: list[tuple[Entry, int, int, int]]) -> bytes:
    """Write a run of any entries, in any order, with blocks and restart points as it says."""
    body, index, first_keys = bytearray(), bytearray(), bytearray()
    highest = max([entry.seq for entry, *_ in entries] + [seq for _, seq in run.prefixes], default=0)
    at = blocks = 0
    while at < len(entries):
        block, restarts, first, seq, count, previous = bytearray(), [], entries[at][0].key, 0, 0, b""
        while at < len(entries) and len(block) < run.block_bytes:
            entry, offset, length, checksum = entries[at]
            shared = 0
            if count % run.restart_every == 0:
                restarts.append(len(block))
            else:
                shared = index_fallback._common(previous, entry.key)
            block += encode_varint(shared) + encode_varint(len(entry.key) - shared) + entry.key[shared:]
            block += bytes([entry.kind & 0xFF]) + encode_varint(entry.seq & U64)
            if entry.kind != packfile.REF_TOMBSTONE:
                block += b"".join(encode_varint(number & U64) for number in (entry.pack, offset, length))
                block += CHECKSUM.pack(checksum)
            previous, seq, count, at = entry.key, max(seq, entry.seq), count + 1, at + 1
        block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
        index += index_fallback.RECORD.pack(
            len(body), len(block), crc32c(block), seq & U64, len(first_keys), len(first)
        )
        first_keys += first
        body += block
        blocks += 1
    index_at = len(body)
    body += index + first_keys
    prefixes_at, keys = len(body), b""
    for prefix, seq in run.prefixes:
        body += index_fallback.PREFIX.pack(len(keys), len(prefix), seq & U64)
        keys += prefix
    body += keys
    packs_at = len(body)
    body += b"".join(encode_varint(len(pack)) + pack for pack in run.packs)
    trailer = [
        b"TXRN", 1, 0, blocks, len(run.prefixes), len(run.packs), len(entries),
        highest if run.max_seq is None else run.max_seq, index_at, prefixes_at, packs_at, 0,
    ]  # fmt: skip
    for number, value in run.trailer.items():
        trailer[number] = (
            value & (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, U64, U64, U64, U64, U64)[number - 1]
        )
    trailer[7] &= U64
    body += index_fallback.TRAILER.pack(*trailer)[:-4]
    return bytes(body) + CHECKSUM.pack(crc32c(body[trailer[8] if trailer[8] <= len(body) else 0 :]))


# --- small files
def forge_json(members: dict[str, Any]) -> bytes:
    """Write a document with its checksum, as `format.json` and records have it."""
    members = {name: value for name, value in members.items() if name != "checksum"}
    return json.dumps({**members, "checksum": records._json_checksum(members)}).encode()


def forge_data_packs(packs: list[DataPack]) -> bytes:
    """Write the field of a header that lists the packs of a commit."""
    encoded = [(pack.name.encode(), encode_varint(pack.end & U64)) for pack in packs]
    return b"".join(encode_varint(len(name)) + name + end for name, end in encoded)
