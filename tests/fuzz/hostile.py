"""What is made of good repositories at random: one to four of their operations are turned into lies, well summed."""

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz import forging
from tests.fuzz.forging import Entry, Forged, Frame, Listed, Pack, Run, forge_data_packs, forge_json
from tests.fuzz.mutations import NUMBERS, mutated
from txstore.format import commitfile, names, packfile
from txstore.format.commitfile import DataPack, RunName, Section
from txstore.format.encoding import encode_varint, with_checksum
from txstore.format.packfile import PackName, Predecessor
from txstore.format.records import HEAD_CACHE, TAG
from txstore.format.regions import Region
from txstore.storage.foreign_values import FileVersion, ForeignRange

_COUNTS = (*NUMBERS, 400_000_000, 10**15, 1023, 1024, 1025, 65_535, 65_536)
_SMALL = (0, 1, 2, 3, 5, 63, 64, 65, 100)


def lie(forged: Forged, random: Random) -> None:
    for _ in range(1 + random.getrandbits(2)):
        random.choice(_LIES)(forged, random)


def lie_in(forged: Forged, path: str, random: Random) -> None:
    """Lie in one commit alone."""
    for _ in range(1 + random.getrandbits(1)):
        random.choice(_LIES_OF_A_PACK)(forged, forged.packs[path], random)


def many(random: Random, *some: int, most: int) -> int:
    """As a rule a few; seldom so many that a bound is met."""
    return most if random.random() < 0.03 else random.choice(some)


def number(random: Random) -> int:
    return random.choice(_SMALL) if random.random() < 0.4 else random.choice(_COUNTS) % (1 << 64)


# --- keys, values and documents
def key(random: Random) -> bytes:
    return random.choice(_KEYS)(random)


_KEYS: tuple[Callable[[Random], bytes], ...] = (
    lambda random: random.choice((b"x/zarr.json", b"zarr.json", b"x/c/0", b"x/c/0/0", b"x", b"g/x/c/0", b".zarray")),
    lambda random: random.choice((b"", b"/", b"//", b"a/", b"/a", b"a//b", b"..", b"../x", b"a/../b", b".", b"\0")),
    lambda random: random.choice((b"\xff\xfe", b"x/c/\xed\xa0\x80", b"a\nb", b"\x1b[2J", "é/ü".encode())),
    lambda random: b"x/c/" + b"9" * random.choice((10, 30, 300)),
    lambda random: b"a/" * random.choice((10, 500, 2047)) + b"z",
    lambda random: b"k" * random.choice((1, 100, 4095, 4096, 4097, 65_535)),
    lambda random: b"x/c/%d" % random.choice((0, 10**15, 2**63, 10**4000 % 10**300)),
    lambda random: random.randbytes(random.randrange(1, 12)),
)  # fmt: skip


def json_value(random: Random, depth: int = 0) -> Any:
    if depth < 3 and random.random() < 0.3:
        if random.random() < 0.5:
            return [json_value(random, depth + 1) for _ in range(random.randrange(4))]
        return {random.choice(_NAMES): json_value(random, depth + 1) for _ in range(random.randrange(4))}
    return copy.deepcopy(random.choice(_VALUES))


_NAMES = ("shape", "name", "chunks", "configuration", "kind", "path", "paths", "values", "a", "")
_VALUES = (
    None, True, False, 0, -1, 1, 2, 1 << 31, 1 << 63, 1 << 64, 10**15, 10**30, -(10**30), 0.5, 1e308, float("inf"),
    float("nan"), "", "x", "a/b", "../..", "\0", "\x1b[31m[red]", "\ud800", "a" * 5000, "0", "regular", "rectilinear",
    "default", "v2", "int64", "string", [], [0], [1, 2], [10**15], [[10**9, 10**9]], [[[3, 10**12]]], {}, {"a": 1},
)  # fmt: skip


def document(random: Random, original: bytes) -> bytes:
    """A document with some of what it says exchanged, or another one, or what is no document."""
    chance = random.random()
    if chance < 0.1:
        return random.choice(_TEXTS)(random)
    told = _members(original if chance > 0.3 else b"")
    if len(told) == 1:
        told = json.loads(random.choice(_DOCUMENTS))
    for _ in range(1 + random.getrandbits(1)):
        where, at = told, random.choice(list(told) or [""])
        while (
            isinstance(where.get(at) if isinstance(where, dict) else where[at], dict | list) and random.random() < 0.6
        ):
            inner = where[at]
            if not inner:
                break
            where, at = inner, random.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        if random.random() < 0.1 and isinstance(where, dict):
            where.pop(at, None)
            if not told:
                break
        elif random.random() < 0.2 and at in ("shape", "chunk_shape", "chunks"):
            where[at] = [
                random.choice((1, 10**9, 10**15, 0, -5, 1 << 63)) for _ in range(random.choice((0, 1, 3, 40, 2000)))
            ]
        else:
            where[at] = json_value(random)
    return json.dumps(told).encode()


def _nested(opening: bytes, inner: bytes, closing: bytes, random: Random) -> bytes:
    depth = random.choice((90, 101, 400, 990, 3000))
    return opening * depth + inner + closing * depth


_TEXTS: tuple[Callable[[Random], bytes], ...] = (
    lambda random: b"[" * random.choice((50, 101, 500, 5000, 100_000)),
    lambda random: _nested(b'{"a":', b"1", b"}", random),
    lambda random: b'{"zarr_format": 3, "node_type": "group", "attributes": ' + _nested(b"[", b"", b"]", random) + b"}",
    lambda random: b'{"zarr_format": 3, "node_type": "array", "shape": [%s]}' % (b"9" * random.choice((20, 5000))),
    lambda random: json.dumps(json_value(random)).encode(),
    lambda random: random.choice((b"", b"null", b"\xff", b"{", b'{"a": 1e999}', b'"\\ud800"', b"\xef\xbb\xbf{}")),
    lambda random: b"base64:" + random.randbytes(8),
)  # fmt: skip

_DOCUMENTS = (
    '{"zarr_format": 3, "node_type": "group", "attributes": {"a": {"b": [1, {}]}}}',
    '{"zarr_format": 3, "node_type": "array", "shape": [1000000000, 1000000], "data_type": "int64", "fill_value": 0, '
    '"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 1]}}, "chunk_key_encoding": {"name": '
    '"default", "configuration": {"separator": "/"}}, "codecs": [{"name": "bytes", "configuration": {"endian": '
    '"little"}}], "attributes": {}}',
    '{"zarr_format": 3, "node_type": "array", "shape": [6], "data_type": "int64", "fill_value": 0, "chunk_grid": '
    '{"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[[2, 3]]]}}, "chunk_key_encoding": '
    '{"name": "default"}, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "attributes": {}}',
    '{"zarr_format": 2, "shape": [4, 4], "chunks": [2, 2], "dtype": "<f8", "fill_value": 0.0, "order": "C", '
    '"compressor": null, "filters": null, "dimension_separator": "."}',
    '{"zarr_format": 2}',
)


def value(random: Random, key: bytes, original: bytes) -> bytes:
    if key.endswith((b"zarr.json", b".zarray", b".zgroup", b".zattrs")) or random.random() < 0.2:
        return document(random, original)
    return random.choice((b"", b"\0" * 8, original + b"\0", original[:-1], random.randbytes(20), original * 2))


def foreign_record(random: Random) -> bytes:
    file = FileVersion(
        random.choice(("file:///etc/passwd", "s3://b/x", "memory://x", "x", "file://" + "%25" * 100)), 0, "1"
    )
    length = number(random)
    encoded = ForeignRange(file._replace(size=number(random)), number(random), length).encode()
    return encoded if random.random() < 0.8 else mutated(encoded, (encoded,), random)


# --- lies in one pack
def _a_number_of_the_header(_: Forged, pack: Pack, random: Random) -> None:
    if pack.fixed is not None:
        pack.fixed[
            random.choice(
                (
                    1,
                    2,
                    forging.REQUIRED,
                    forging.OPTIONAL,
                    *[forging.VERSION, forging.SEQ, forging.OLDEST_KEPT, forging.TIME] * 3,
                )
            )
        ] = number(random)


def _a_field_of_the_header(_: Forged, pack: Pack, random: Random) -> None:
    kind = random.choice((*range(1, 11), 11, 65_535))
    content = random.choice((
        b"", b"\xff", b"\x80", random.randbytes(12), b"x" * many(random, 40, most=70_000),
        json.dumps(json_value(random)).encode(),
        document(random, b""), b"".join(encode_varint(number(random)) for _ in range(many(random, 1, 3, 6, most=3100))),
        mutated(pack.get(kind) or b"main", (b"main",), random),
    ))  # fmt: skip
    pack.set(kind, content)


def _constraints(_: Forged, pack: Pack, random: Random) -> None:
    if pack.fixed is None:
        return
    pack.fixed[forging.REQUIRED] |= commitfile.FEATURE_CONSTRAINTS
    told = {
        "c": random.choice((
            {"kind": "equal length", "paths": random.choice((["x", "y"], json_value(random)))},
            {"kind": "fixed", "path": "x", "values": {"dtype": json_value(random), "codecs": json_value(random)}},
            {"kind": "attributes", "path": "x", "values": {"a": json_value(random)}},
            {
                "kind": random.choice(("only grows", "complete", "unique")),
                "path": random.choice(("x", json_value(random))),
            },
            {"kind": "sorted", "path": "x", "descending": json_value(random), "strict": random.choice((True, False))},
            {"kind": json_value(random), "path": json_value(random)},
            json_value(random),
        ))
    }  # fmt: skip
    pack.set(forging.CONSTRAINTS, json.dumps(told).encode() if random.random() < 0.9 else document(random, b""))


def _listed_runs(forged: Forged, pack: Pack, random: Random) -> None:
    runs = pack.runs
    chance = random.random()
    if chance < 0.5 and runs:
        random.choice(runs).says[random.choice(RunName._fields[1:])] = number(random)
    elif chance < 0.6 and runs:
        random.choice(runs).says["pack"] = _a_pack_name(forged, random)
    elif chance < 0.7 and runs:
        runs.remove(random.choice(runs))
    elif chance < 0.8 and runs:
        random.shuffle(runs)
    elif chance < 0.9:
        more = many(random, 1, 2, 30, most=1100)
        for i in range(more):
            runs.insert(0, Listed(None, RunName(_a_pack_name(forged, random), number(random), 64 + i, 64, 0, 0)))
    elif runs:
        runs.extend([random.choice(runs)] * many(random, 1, 20, most=2000))


def _a_pack_name(forged: Forged, random: Random) -> PackName:
    path = random.choice(sorted(forged.packs))
    pack = forged.packs[path]
    if pack.fixed is not None and random.random() < 0.7:
        return PackName(
            pack.id, "main", pack.fixed[forging.VERSION] % (1 << 64) if random.random() < 0.7 else number(random)
        )
    return PackName(random.choice((pack.id, bytes(16))))


def _sections(_: Forged, pack: Pack, random: Random) -> None:
    for _ in range(many(random, 1, 2, most=1100)):
        pack.more_sections.append(Section(random.choice((1, 2, number(random))), number(random), number(random)))


def _data_packs(forged: Forged, pack: Pack, random: Random) -> None:
    named = [DataPack(_a_pack_name(forged, random), number(random)) for _ in range(many(random, 1, 2, most=500))]
    pack.set(forging.PACKS, forge_data_packs(named))


def _a_run(forged: Forged, pack: Pack, random: Random) -> None:
    runs = [run for run in pack.sections if isinstance(run, Run)]
    if not runs:
        return
    run = random.choice(runs)
    chance = random.random()
    if chance < 0.35 and run.entries:
        entry = random.choice(run.entries)
        what = random.choice(("key", "kind", "seq", "pack", "offset", "length", "checksum", "of"))
        if what == "key":
            entry.key = key(random)
            run.entries.sort(key=lambda entry: entry.key)
        elif what == "kind":
            entry.kind = random.choice((0, 1, 2, 3, 4, 255))
        elif what == "checksum":
            entry.of, entry.checksum = None, random.getrandbits(32)
        elif what == "of":
            path = random.choice(sorted(forged.packs))
            entry.of = path, random.randrange(max(len(forged.packs[path].frames), 1))
        else:
            entry.of = None if what in ("offset", "length") else entry.of
            setattr(entry, what, number(random))
    elif chance < 0.5:
        keys = {key(random) for _ in range(many(random, 1, 3, most=200))} | {entry.key for entry in run.entries}
        there = {entry.key: entry for entry in run.entries}
        seq = run.entries[0].seq if run.entries else 0
        run.entries = [there.get(each) or Entry(each, 0, seq) for each in sorted(keys)]
    elif chance < 0.6:
        prefixes = [key(random) + random.choice((b"/", b"")) for _ in range(many(random, 1, 2, most=300))]
        run.prefixes = [(prefix, random.choice((0, 1, number(random)))) for prefix in sorted({*prefixes, b""})]
    elif chance < 0.7:
        run.trailer[random.randrange(1, 11)] = number(random)
    elif chance < 0.75:
        run.packs = [random.choice((_a_pack_name(forged, random).encode(), b"", b"\x02", random.randbytes(40)))] * many(
            random, 1, 3, most=5000
        )
    elif chance < 0.85:  # keys that unfold
        stem = b"u" * random.choice((100, 3000, 4000))
        run.entries = [
            Entry(stem + b"%03d" % i, 0, run.entries[0].seq if run.entries else 0)
            for i in range(random.choice((20, 90)))
        ]
        run.restart_every, run.block_bytes = random.choice((16, 17, 1 << 20)), random.choice((100, 4096, 1 << 20))
    elif chance < 0.9:
        run.max_seq = number(random)
    elif chance < 0.95:
        run.entries = run.entries[::-1]
    else:
        at = pack.sections.index(run)
        pack.sections[at] = mutated(b"TXRN" + random.randbytes(60), (b"TXRN",), random)


def _a_frame(forged: Forged, pack: Pack, random: Random) -> None:
    if not pack.frames:
        return
    frame = random.choice(pack.frames)
    chance = random.random()
    if chance < 0.5:
        frame.value = value(random, frame.key, frame.value)
    elif chance < 0.6:
        frame.kind = random.choice((*range(14), 255))
        frame.region = region(random) if frame.kind == packfile.FRAME_PARTIAL else b""
    elif chance < 0.7:
        frame.key = key(random)
    elif chance < 0.75:
        frame.seen = random.choice((0, 1, 3, 255, Predecessor(number(random) % (1 << 32), number(random))))
    elif chance < 0.8:
        frame.sequence = number(random)
    elif chance < 0.85:
        frame.length = number(random)
    elif chance < 0.9:
        frame.kind, frame.value = packfile.FRAME_FOREIGN, foreign_record(random)
        for run in pack.sections:
            for entry in run.entries if isinstance(run, Run) else ():
                if entry.of is not None and pack.frames[entry.of[1] % len(pack.frames)] is frame:
                    entry.kind = packfile.REF_FOREIGN
    elif chance < 0.95:
        about = {
            "host": json_value(random),
            "pid": json_value(random),
            "time": json_value(random),
            "locks": json_value(random),
        }
        more = Frame(packfile.FRAME_PARTICIPANT, 0, 0, b"", json.dumps(about).encode())
        pack.frames.insert(0, more)
    else:
        pack.frames[:] = [*pack.frames, frame] if random.random() < 0.5 else pack.frames[::-1]


def region(random: Random) -> bytes:
    """Return what may be a region."""
    box = tuple((start, start + random.choice((1, 3, 1 << 40))) for start in random.choices((0, 1, 5, 1 << 50), k=2))
    return random.choice((Region.of_box(box).encode(), random.randbytes(9), b"\x01\x01\x00\x00", b""))


def _the_head(_: Forged, pack: Pack, random: Random) -> None:
    what = random.choice(("id", "repository", "number", "first"))
    setattr(pack, what, random.randbytes(16) if what in ("id", "repository") else number(random))


_LIES_OF_A_PACK: tuple[Callable[[Forged, Pack, Random], None], ...] = (
    _a_number_of_the_header, _a_number_of_the_header, _a_field_of_the_header, _constraints, _listed_runs, _listed_runs,
    _sections, _data_packs, _a_run, _a_run, _a_run, _a_run, _a_frame, _a_frame, _a_frame, _the_head,
)  # fmt: skip


def _in_a_pack(forged: Forged, random: Random) -> None:
    paths = sorted(forged.packs)
    path = paths[-1] if random.random() < 0.2 else random.choice(paths)
    if random.random() < 0.5 and forged.commits:
        path = random.choice(forged.commits[-2:])
    random.choice(_LIES_OF_A_PACK)(forged, forged.packs[path], random)


# --- lies of files
def _a_version(forged: Forged, random: Random) -> None:
    """Move a commit, as a rule the head, far away."""
    path = forged.commits[-1] if random.random() < 0.7 else random.choice(forged.commits)
    version = random.choice((400_000_000, 10**15, (1 << 62) - 2, 10**10 - 1, 10**18, random.randrange(20)))
    if names.commit_path("main", version) not in forged.packs:
        pack = forged.packs[forged.move(path, version)]
        if random.random() < 0.5:
            pack.is_child = False
            pack.fixed[forging.PARENT_ID] = pack.fixed[forging.PARENT_HASH] = bytes(16)
        if random.random() < 0.3:
            pack.fixed[forging.OLDEST_KEPT] = random.choice((0, version, max(version - 3, 0)))


def _only_one_commit(forged: Forged, random: Random) -> None:
    kept = random.choice(forged.commits)
    for path in forged.commits:
        if path != kept:
            del forged.packs[path]


def _no_head_cache(forged: Forged, random: Random) -> None:
    forged.others.pop(names.head_cache_path("main"), None)


def _a_head_cache(forged: Forged, random: Random) -> None:
    pack = forged.packs[random.choice(forged.commits)]
    version = number(random) if random.random() < 0.5 else pack.fixed[forging.VERSION] % (1 << 64)
    fields = (
        b"TXSTHEAD",
        version,
        pack.id,
        number(random),
        number(random),
        number(random) % (1 << 32),
        random.getrandbits(32),
        random.getrandbits(32),
    )
    forged.others[names.head_cache_path("main")] = with_checksum(HEAD_CACHE.pack(*fields))


def _tags(forged: Forged, random: Random) -> None:
    for i in range(random.choice((1, 2, 60))):
        pack = forged.packs[random.choice(forged.commits)]
        version = number(random) if random.random() < 0.5 else pack.fixed[forging.VERSION] % (1 << 64)
        branch = random.choice((b"main", b"main", b"..", b"side", b"", b"\xff"))
        forged.others[f"tags/{random.choice(('v1', f't{i}'))}"] = with_checksum(
            TAG.pack(b"TXSTTAG1", version, pack.id) + branch
        )


def _oldest_kept_versions(forged: Forged, random: Random) -> None:
    for _ in range(random.choice((1, 3))):
        version = random.choice((0, 1, 3, 400_000_000, 10**15, 10**18))
        content = with_checksum(TAG.pack(b"TXSTTAG1", number(random), random.randbytes(16)) + b"main")
        forged.others[names.oldest_kept_path("main", version)] = content


def _members(content: bytes) -> dict[str, Any]:
    """What a document says that an earlier lie may have spoilt."""
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        told = None
    return told if isinstance(told, dict) and told else {"txstore": 1}


def _format_json(forged: Forged, random: Random) -> None:
    told = _members(forged.others[names.FORMAT])
    told[random.choice(list(told))] = json_value(random)
    forged.others[names.FORMAT] = forge_json(told)


def _records(forged: Forged, random: Random) -> None:
    """Of transactions that are open, or say that they are."""
    found = [name for name in forged.others if names.parse_record(name.rpartition("/")[2]) is not None]
    if not found:
        return
    name = random.choice(found)
    told = _members(forged.others[name])
    for _ in range(random.choice((1, 2))):
        at = random.choice(list(told))
        told[at] = random.choice((json_value(random), number(random)))
        if at == "base":
            told[at] = random.choice(([number(random), "0" * 32], [0, "f" * 32], json_value(random)))
        if at in ("properties", "time"):
            told[at] = json_value(random) if at == "properties" else random.choice((2**63 - 1, 10**18, 2**53))
    forged.others[name] = forge_json(told) if random.random() < 0.9 else document(random, b"")
    if random.random() < 0.3:
        forged.others[name.replace(".open", ".sealed")] = forged.others.pop(name)


def _staged_names(forged: Forged, random: Random) -> None:
    staged = [name for name in forged.packs if name.startswith(names.STAGING)]
    if staged:
        name = random.choice(staged)
        pack = forged.packs.pop(name)
        participant = random.choice((0, 1, 2, 65_535, 65_536, 2**32 - 1, 2**32, 10**200))
        transaction = bytes.fromhex(name.rpartition("/")[2].partition(".")[0])
        pack.number = participant % (1 << 32)
        pack.id = packfile.participants_pack(transaction, pack.number)
        forged.packs[f"{names.STAGING}/{transaction.hex()}.{participant}"] = pack


def _raw(forged: Forged, random: Random) -> None:
    if forged.others:
        name = random.choice(sorted(forged.others))
        forged.others[name] = random.choice(
            (b"", b"\0" * 64, mutated(forged.others[name], (b"x",), random), b"x" * 100)
        )


def _strays(forged: Forged, random: Random) -> None:
    directory = random.choice(
        ("commits/main/", "tags/", "packs/00/", "packs/", "oldest_kept/main/", ".staging/", "heads/", "", "locks/")
    )
    name = random.choice(
        (
            ".DS_Store",
            "0" * 10 + ".orphan-" + "0" * 32,
            "9" * 255,
            "1" * 19,
            "zz",
            "named-x",
            "0" * 32,
            "a" * 32 + ".open",
            "\udce9",
        )
    )
    forged.others[directory + name] = random.choice((b"", b"x" * 40, b"0" * 32))


def _lock_file(forged: Forged, random: Random) -> None:
    fields = [
        b"TXSLOCKS",
        1,
        random.choice((0, 1, 2, 3, 9)),
        random.choice((1 << 20, 64, 1 << 26, 3, 0xFFFFFFFF)),
        0,
        number(random),
        number(random),
        number(random),
        number(random),
        random.choice((b"", b"x" * 40)),
    ]
    from txstore.locks.lock_file import HEADER

    content = HEADER.pack(*fields)
    forged.others["locks/chunks"] = content + bytes(random.choice((0, 100, 4096, 200_000))) + random.randbytes(64)


_LIES: tuple[Callable[[Forged, Random], None], ...] = (
    *[_in_a_pack] * 12, _a_version, _a_version, _only_one_commit, _no_head_cache, _a_head_cache, _tags,
    _oldest_kept_versions, _format_json, _records, _records, _staged_names, _raw, _strays, _lock_file,
)  # fmt: skip
