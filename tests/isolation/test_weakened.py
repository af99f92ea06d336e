"""Each clause of the rules is taken out, one at a time: the checker, or a scenario made for it, must notice.

So none of the clauses is there for nothing, and none of the tests is blind.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.isolation.checker import check
from tests.isolation.interleavings import interleave
from tests.isolation.weaknesses import (
    FIRST,
    SECOND,
    Scenario,
    Unnoticed,
    clear_chunks,
    group_above,
    grown_array,
    histories,
    older_array,
    part_of_a_serializable_transaction,
    participant_reads,
    put_twice,
    reads,
    rolled_back,
    stale,
    turn_into_array,
    two,
    two_mappings,
)
from tests.tools.arrays import add_part, append, attributes, create, delete, edit_document, part, put, resize
from txstore.codecs.chunk_codec import ChunkMerger
from txstore.format import documents, packfile
from txstore.format.documents import DocumentChange, Node
from txstore.format.regions import Region
from txstore.format.row_moves import ATTRIBUTE, MOVED
from txstore.segments.runs import Runs
from txstore.sessions import session, stale_arrays
from txstore.sessions.stale_arrays import HeldDocuments
from txstore.transactions import conflicts, draft
from txstore.transactions.conflicts import Check
from txstore.transactions.draft import Merges
from txstore.transactions.participants.membership import Siblings
from txstore.transactions.reads import NotingView, ReadMarks
from txstore.transactions.staging import Staging
from txstore.transactions.view import View

PART = slice(1, 3)  # of the first chunk of x
Weaken = Callable[[pytest.MonkeyPatch], None]

along_t = partial(create, dimension_names=("t",))
other_type = edit_document("x/zarr.json", data_type="uint32")
moved_rows = edit_document("x/zarr.json", attributes={ATTRIBUTE: MOVED})
smaller_shape = edit_document("x/zarr.json", shape=[4])  # and nothing done to the chunk that this drops


class Weakening(NamedTuple):
    name: str
    weaken: Weaken
    scenario: Scenario


# --- the tables of the rules: every entry has to be missed
CLAUSES: dict[str, Scenario] = {
    "set": histories("snapshot", "append", "read list"),
    "deleted": histories("snapshot", "remove", "names"),
    "foreign change": two(create(), put(FIRST, 5), other_type),
    "my change": two(create(), other_type, put(FIRST, 5)),
    "beside moved rows": two(along_t(), along_t("y"), moved_rows),
    "beside my moves": two(along_t(), moved_rows, along_t("y")),
    "my moves": two(create(), lambda store: store.move("x", "y"), lambda store: store.__delitem__("x/c/0")),
    "their moves": two(create(), lambda store: store.mapping.delete_dir("x"), lambda store: store.move("x", "y")),
    "my prefix": histories("snapshot", "make", "clear", "names"),
    "read": histories("serializable", "read list", "read register", "append", "write"),
    "names": histories("serializable", "names", "make"),
    "keys": histories("serializable", "keys", "make"),
    "any": reads(lambda t: t.has_keys_below("e"), lambda t: t.__setitem__("e/new", b"2")),
}
FOREIGN_CHANGES: dict[DocumentChange, Scenario] = {
    DocumentChange.STRUCTURE: two(create(), put(FIRST, 5), other_type),
    DocumentChange.MOVED: two(create(), put(FIRST, 5), moved_rows),
    DocumentChange.SHRINK: two(create(), put(SECOND, 5), smaller_shape),
}
MY_CHANGES: dict[DocumentChange, Scenario] = {
    DocumentChange.STRUCTURE: two(create(), other_type, put(FIRST, 5)),
    DocumentChange.SHRINK: two(create(), smaller_shape, put(SECOND, 5)),
}


def tables() -> Iterator[Weakening]:
    for clause in conflicts.CLAUSES:
        left = tuple(other for other in conflicts.CLAUSES if other is not clause)
        yield Weakening(f"clause: {clause.name}", replace(conflicts, "CLAUSES", left), CLAUSES[clause.name])
    scenarios: Mapping[str, Mapping[DocumentChange, Scenario]] = {
        "FOREIGN_CHANGES": FOREIGN_CHANGES,
        "MY_CHANGES": MY_CHANGES,
    }
    for table, scenario in scenarios.items():
        entries: Mapping[DocumentChange, Any] = getattr(conflicts, table)
        for change in entries:
            less = {key: value for key, value in entries.items() if key is not change}
            yield Weakening(f"{table}: {change.value}", replace(conflicts, table, less), scenario[change])


def replace(where: Any, name: str, by: Any) -> Weaken:
    return lambda patch: patch.setattr(where, name, by)


# --- what the clauses are made of
def blind_to(kind: int) -> Weaken:
    """Overlook what was changed by entries of one kind."""

    def changed(self: Check, key: str) -> bool:
        found = self.recent.lookup(key.encode())
        return found is not None and found.seq > self.since and found.kind != kind

    return replace(Check, "changed", changed)


def structure_without(member: str) -> Weaken:
    parse = Node.parse.__func__  # type: ignore[attr-defined]

    def weakened(cls: type[Node], key: str, content: bytes | None) -> Node:
        node: Node = parse(cls, key, content)
        rest = {k: v for k, v in node.structure.items() if k != member} if node.kind == "array" else None
        return Node(node.kind, node.shape, node.chunks, rest)

    return replace(Node, "parse", classmethod(weakened))


def compared(change: Callable[[str, bytes | None, bytes | None], DocumentChange], *where: Any) -> Weaken:
    def weaken(patch: pytest.MonkeyPatch) -> None:
        for module in where or (conflicts,):
            patch.setattr(module, "compare_documents", change)

    return weaken


def deletion_is_harmless(key: str, before: bytes | None, after: bytes | None) -> DocumentChange:
    change = documents.compare_documents(key, before, after)
    return DocumentChange.ATTRIBUTES if after is None else change


def shrinking_is_growing(key: str, before: bytes | None, after: bytes | None) -> DocumentChange:
    change = documents.compare_documents(key, before, after)
    return DocumentChange.GROWTH if change is DocumentChange.SHRINK else change


def equal_bytes_are_no_conflict(check: Check, key: str) -> bool:
    view = check.head.get_view(key)
    return view is not None and view == check.mine.documents.get(key)


def creation_is_no_conflict(check: Check, key: str) -> bool:
    return check.mine.documents.get(key) is not None


def own_documents_only(self: Check, path: str) -> list[str]:
    return [key for name in documents.NODE_DOCUMENTS if self.changed(key := f"{path}/{name}")]


def new_keys_only(check: Check, document: str, _: bytes | None) -> Iterator[str]:
    return check.new_keys_below(document.rpartition("/")[0] + "/")


def deleted_if_it_was_there(check: Check) -> Iterator[str]:
    return (key for key in check.mine.deleted if check.changed(key) and key in check.base)


def clause(name: str, keys: Callable[[Check], Iterator[str]]) -> Weaken:
    weakened = tuple(each._replace(keys=keys) if each.name == name else each for each in conflicts.CLAUSES)
    return replace(conflicts, "CLAUSES", weakened)


def unnoted(name: str) -> Weaken:
    """Let one way of reading pass unnoted."""

    def pass_on(self: NotingView, *arguments: Any, **more: Any) -> Any:
        return getattr(self._view, name)(*arguments, **more)

    return replace(NotingView, name, pass_on)


def overlook_reads(patch: pytest.MonkeyPatch) -> None:
    add = Siblings._add
    patch.setattr(
        Siblings,
        "_add",
        lambda self, participant, frames: add(
            self, participant, [frame for frame in frames if frame.kind not in packfile.FRAMES_READ]
        ),
    )


def forget_unchanged(patch: pytest.MonkeyPatch) -> None:
    unweakened = View.reads
    patch.setattr(View, "reads", lambda self, unchanged: unweakened(self, ()))
    patch.setattr(View, "rely_if_serializable", lambda *_: None)


def written_regions(region: Region) -> Weaken:
    """Let all that is written in part have this region."""
    stage_part = Staging.stage_part

    def weakened(self: Staging, key: str, encoded: bytes, value: Any, known: Any, _: Region) -> None:
        stage_part(self, key, encoded, value, known._replace(own=region), region)

    return replace(Staging, "stage_part", weakened)


def merged_over_base(patch: pytest.MonkeyPatch) -> None:
    merged = View.merged
    patch.setattr(View, "merged", lambda self, key, below, layers: merged(self, key, self.base.get_view(key), layers))


RULES = [
    Weakening("a deletion is no change", blind_to(packfile.REF_TOMBSTONE),
              two(create(), put(FIRST, 5), lambda store: store.__delitem__("x/zarr.json"))),
    Weakening("a deleted prefix is no change", blind_to(packfile.FOUND_PREFIX), two(create(), put(FIRST, 5), delete())),
    Weakening("equal documents are no conflict",
              replace(conflicts, "_is_equal_of_group", equal_bytes_are_no_conflict),
              two(create(), append(0), append(0))),
    Weakening("documents are no conflict", replace(conflicts, "_is_equal_of_group", creation_is_no_conflict),
              two(create(), append(7), attributes(a=1))),
    Weakening("deleting what was not there is no write", clause("deleted", deleted_if_it_was_there),
              two_mappings(lambda t: t.delete("new"), lambda t: t.__setitem__("new", b"2"))),
    Weakening("groups above do not count", replace(Check, "changed_documents", own_documents_only),
              two(group_above, put(FIRST, 5, "g/x"), turn_into_array)),
    Weakening("chunks that were deleted do not count",
              replace(conflicts, "MY_CHANGES", {DocumentChange.STRUCTURE: new_keys_only}),
              two(create(), edit_document("x/zarr.json", fill_value=9), put(FIRST, 0))),
    Weakening("chunks that were cleared do not count", replace(Check, "cleared_keys_below", lambda *_: iter(())),
              two(create(), edit_document("x/zarr.json", fill_value=9), clear_chunks)),
    *(Weakening(f"structure without {member}", structure_without(member),
                two(create(), put(FIRST, 5), edit_document("x/zarr.json", **{member: value})))
      for member, value in {
          "data_type": "uint32", "fill_value": 9, "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}],
          "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
      }.items()),
    Weakening("a deleted array is a change of attributes", compared(deletion_is_harmless),
              two(create(), put(FIRST, 5), lambda store: store.__delitem__("x/zarr.json"))),
    Weakening("shrinking is growing", compared(shrinking_is_growing), two(create(), put(SECOND, 5), smaller_shape)),
    Weakening("no chunk is dropped by others", replace(conflicts, "cuts_chunk", lambda *_: False),
              two(create(), put(SECOND, 5), smaller_shape)),
    Weakening("no chunk is dropped here", replace(conflicts, "cuts_chunk", lambda *_: False),
              two(create(), smaller_shape, put(SECOND, 5))),
    Weakening("all parts of a chunk are apart", replace(Merges, "are_apart", lambda *_: True),
              histories("snapshot", "read element", "write element")),
    Weakening("equal values are apart", replace(ChunkMerger, "differ", lambda self, base, head, region: False),
              two(create(), add_part(PART, 1), add_part(PART, 1))),
    Weakening("regions are forgotten", written_regions(Region.of_box(((0, 1),))),
              histories("snapshot", "read element", "write element")),
    Weakening("what others have written is not merged", replace(Merges, "merge", lambda *_: False),
              histories("snapshot", "read element", "write element")),
    Weakening("the base is merged, not the head", merged_over_base,
              histories("snapshot", "read element", "write element")),
    Weakening("an array that was made anew is the same", replace(Runs, "new_prefixes", lambda *_: []),
              two(create(value=0), part(PART, 5), create(value=0, overwrite=True))),
    Weakening("serializable transactions merge", replace(draft, "SERIALIZABLE", "never"),
              part_of_a_serializable_transaction),
    Weakening("what was read is forgotten", replace(ReadMarks, "__contains__", lambda *_: False), put_twice),
]  # fmt: skip


# --- what array objects may rely on
STALE = [
    Weakening("no document is stale", compared(lambda *_: DocumentChange.NONE, stale_arrays),
              stale(create(), other_type, use=lambda z: z[:])),
    Weakening("what changed back was never different", replace(DocumentChange, "or_worse", lambda self, other: other),
              stale(create(), other_type, edit_document("x/zarr.json", data_type="int32"), attributes(a=1),
                    use=lambda z: z[:])),
    Weakening("no chunk of an old object is dropped", replace(stale_arrays, "drops_chunk", lambda *_: False),
              stale(create(), resize(4), use=lambda z: z[SECOND])),
    Weakening("no edge has moved", replace(stale_arrays, "moved_edges", lambda *_: frozenset()),
              stale(create(n=6), append(7, 7), use=lambda z: z.__setitem__(slice(4, 6), 5))),
    Weakening("no chunk is at the edge", replace(stale_arrays, "is_at_edge", lambda *_: False),
              stale(create(n=6), append(7, 7), use=lambda z: z.__setitem__(slice(4, 6), 5))),
    Weakening("no document is of an array", replace(stale_arrays, "may_be_array", lambda *_: False), rolled_back),
]  # fmt: skip


# --- what serializable transactions note
def change(key: str, value: bytes | None = b"2") -> Callable[[Any], None]:
    return lambda mapping: mapping.__delitem__(key) if value is None else mapping.__setitem__(key, value)


READS = [
    Weakening("values are not noted", unnoted("get_view"), reads(lambda t: t.get_view("a"), change("a"))),
    Weakening("absent keys are not noted", unnoted("get_view"), reads(lambda t: t.get_view("new"), change("new"))),
    Weakening("deleted keys are not noted", unnoted("get_view"), reads(lambda t: t.get_view("a"), change("a", None))),
    Weakening("parts are not noted", unnoted("get_part"), reads(lambda t: t.get_part("a", slice(0, 1)), change("a"))),
    Weakening("sizes are not noted", unnoted("size_of"), reads(lambda t: t.size_of("a"), change("a"))),
    Weakening("existence is not noted", unnoted("size_of"), reads(lambda t: "new" in t, change("new"))),
    Weakening("names are not noted", unnoted("list_dir"), reads(lambda t: list(t.list_dir("d")), change("d/new/c/0"))),
    Weakening("listdir is not noted", unnoted("list_dir"), reads(lambda t: t.listdir("d"), change("d/x", None))),
    Weakening("walks are not noted", unnoted("keys_between"), reads(lambda t: [*t.keys_below("d")], change("d/y/z"))),
    Weakening("iteration is not noted", unnoted("keys_between"), reads(list, change("d/y"))),
    Weakening("len is not noted", unnoted("keys_between"), reads(len, change("d/y"))),
    Weakening("emptiness is not noted", unnoted("has_keys_below"),
              reads(lambda t: t.has_keys_below("e"), change("e/new"))),
    Weakening("deleted prefixes change no names", replace(Runs, "new_prefixes", lambda *_: []),
              reads(lambda t: list(t.list_dir("d")), lambda t: t.delete_dir("d"))),
    Weakening("deleted prefixes change no names above them", replace(Runs, "new_prefixes", lambda *_: []),
              reads(lambda t: list(t.list_dir("")), lambda t: t.delete_dir("d"))),
    Weakening("deleted prefixes change no keys", replace(Check, "cleared_keys_below", lambda *_: iter(())),
              reads(lambda t: [*t.keys_below("d")], lambda t: t.delete_dir("d"))),
    Weakening("what was written as it was is forgotten", forget_unchanged, reads(change("a", b"1"), change("a"))),
    Weakening("what participants read is overlooked", overlook_reads, participant_reads),
    Weakening("what an older transaction read is overlooked", replace(HeldDocuments, "count_as_read", lambda *_: None),
              older_array),
    Weakening("growth is never stale", replace(session, "SERIALIZABLE", "never"), grown_array),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "weakening", [pytest.param(each, id=each.name) for each in [*tables(), *RULES, *STALE, *READS]]
)
def test_a_weakened_rule_is_noticed(weakening, open_repo, monkeypatch):
    weakening.scenario(open_repo("sound.tx", durability="none"))
    with monkeypatch.context() as patch:
        weakening.weaken(patch)
        with pytest.raises(Unnoticed):
            weakening.scenario(open_repo("weak.tx", durability="none"))


def test_the_checker_sees_what_snapshot_isolation_allows() -> None:
    """The same histories that pass as snapshot isolation are no serial order: the checker could tell."""
    found = set()
    for seed in range(30):
        history, _ = interleave(random.Random(seed), 45, "snapshot", ("read list", "append", "names", "make"))
        assert check(history, "snapshot") == []
        found |= {anomaly.name for anomaly in check(history, "serializable")}
    assert found == {"G2"}
