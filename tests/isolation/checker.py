"""An isolation checker: which anomalies are in a history, going by what its transactions have read and written alone.

The order of the versions of a list is in the lists themselves. From versions and reads follow the dependencies between
transactions: `ww` (wrote the next version), `wr` (read what the other wrote), `rw` (read what the other then wrote
over), and `so` (the same process, later). Cycles of these are what the isolation levels forbid:

| cycle of                                     | name | forbidden in            |
|----------------------------------------------|------|-------------------------|
| ww                                           | G0   | both                    |
| ww, wr, so                                   | G1c  | both                    |
| all, but no two rw one after the other       | G-SI | both                    |
| all                                          | G2   | serializable            |

Commit seqs are used only for the order of blind writes, and in `snapshot_faults`, which compares what was read with
what a replay of the commits says.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from tests.isolation.histories import READS, SETUP, Op, Txn, apply, replay, seen, written

T = TypeVar("T", int, tuple[int, bool])


class Anomaly(NamedTuple):
    name: str
    what: str


class Version(NamedTuple):
    """What one transaction has left in an object; the writer of the first is None."""

    value: Any
    writer: Txn | None


class Read(NamedTuple):
    txn: Txn
    key: str
    value: Any


def check(history: list[Txn], isolation: str) -> list[Anomaly]:
    """Return what is wrong with a history under "snapshot" or "serializable"."""
    committed = [txn for txn in history if not txn.aborted]
    external, found = _external_reads(history)
    found += _misread_values(history, external)
    versions: dict[str, list[Version]] = {}
    for key, faults, order in _version_orders(committed, external):
        versions[key] = order
        found += faults
    edges = _dependencies(committed, [read for read in external if not read.txn.aborted], versions, isolation)
    return [*found, *_cycles(edges, isolation), *_process_faults(history), *snapshot_faults(history)]


# --- what was read
def _external_reads(history: list[Txn]) -> tuple[list[Read], list[Anomaly]]:
    """Return the reads that are not of what the transaction itself wrote, and what is wrong with those that are."""
    members = {key for txn in history for op in txn.ops for key in written(op) if key[0] == "s"}
    members |= {key for txn in history for op in txn.ops if op.kind == "list" for key in op.value}
    external, found = [], []
    for txn in history:
        own: dict[str, Any] = {}  # what it must see: its own writes, on what it has read
        read: dict[str, Any] = {}
        for op in txn.ops:
            if op.kind not in READS:
                if op.kind == "append":
                    own.setdefault(op.key, read.get(op.key, ()))
                apply(op, own)
                if op.kind in ("remove", "clear"):
                    own |= dict.fromkeys(written(op), False)
                continue
            for key, value in _single_reads(op, members):
                expected = own[key] if key in own else read.get(key, value)
                if value != expected:
                    found.append(Anomaly("internal", f"{txn} read {value} of {key}, not {expected}"))
                if key not in own and key not in read:
                    external.append(Read(txn, key, value))
                    read[key] = value
    return external, found


def _single_reads(op: Op, members: Iterable[str]) -> Iterator[tuple[str, Any]]:
    if op.kind == "read":
        yield op.key, op.value
    elif op.kind == "list" or not op.value:
        there = op.value if op.kind == "list" else ()
        for key in members:
            if key.startswith(op.key + "/"):
                yield key, key in there


def _misread_values(history: list[Txn], external: list[Read]) -> list[Anomaly]:
    """Return reads of values that nobody wrote, that were rolled back, or that were not the last of their writer."""
    writers: dict[tuple[str, Any], Txn] = {}
    last: dict[tuple[int, str], Any] = {}
    for txn in history:
        for op in txn.ops:
            if op.kind in ("append", "write"):
                writers[op.key, op.value] = txn
                last[txn.id, op.key] = op.value
            elif op.kind == "make":
                writers[op.key, True] = txn
    makers = {key for key, value in writers if value is True}
    found = []
    for txn, key, value in external:
        elements = value if isinstance(value, tuple) else (value,)
        if len(set(elements)) < len(elements):
            found.append(Anomaly("duplicate", f"{txn} read {value} of {key}"))
        for place, element in enumerate(elements):
            if element is None or element is False or (element is True and key not in makers):
                continue  # the first version
            writer = writers.get((key, element))
            if writer is None:
                found.append(Anomaly("unwritten", f"{txn} read {element!r} in {key}, which nobody wrote"))
            elif writer.aborted:
                found.append(Anomaly("G1a, aborted read", f"{txn} read {element!r} of {writer} in {key}"))
            elif place == len(elements) - 1 and element is not True and last[writer.id, key] != element:
                found.append(Anomaly("G1b, intermediate read", f"{txn} read {element!r} of {writer} in {key}"))
    return found


# --- in which order what was written came
def _version_orders(committed: list[Txn], external: list[Read]) -> Iterator[tuple[str, list[Anomaly], list[Version]]]:
    read = defaultdict(list)
    for each in external:
        read[each.key].append(each)
    writers: dict[str, list[Txn]] = defaultdict(list)
    for txn in committed:
        for key in dict.fromkeys(key for op in txn.ops for key in written(op)):
            writers[key].append(txn)
    for key in sorted(read.keys() | writers.keys()):
        if key[0] == "l":
            yield key, *_list_versions(key, [each for each in read[key] if not each.txn.aborted], writers[key])
        else:
            yield key, [], _seq_versions(key, writers[key])


def _list_versions(key: str, read: list[Read], writers: list[Txn]) -> tuple[list[Anomaly], list[Version]]:
    """Order the versions of a list: each is the one before and what its writer has appended."""
    found: list[Anomaly] = []
    known = {each.txn.id: each.value for each in read}
    appended = {txn.id: tuple(op.value for op in txn.ops if (op.kind, op.key) == ("append", key)) for txn in writers}
    by_element = {element: txn for txn in writers for element in appended[txn.id]}
    results = {txn.id: (*known.get(txn.id, ()), *appended[txn.id]) for txn in writers}
    longest = max([each.value for each in read] + list(results.values()), default=(), key=len)
    from_the_same = Counter(known.get(txn.id, ()) for txn in writers)
    for value, count in from_the_same.items():
        if count > 1:
            found.append(Anomaly("lost update", f"{count} transactions appended to {value} of {key}"))
    for txn_id, value in [(each.txn.id, each.value) for each in read] + list(results.items()):
        if value != longest[: len(value)]:
            found.append(Anomaly("incompatible orders", f"T{txn_id} had {value} in {key}, another {longest}"))
    versions = [Version((), None)]
    for place, element in enumerate(longest):
        writer = by_element.get(element)
        value = longest[: place + 1]
        if writer is not None and versions[-1].writer is writer:
            versions[-1] = Version(value, writer)
        else:
            if writer is not None and any(version.writer is writer for version in versions):
                found.append(Anomaly("G0, interleaved writes", f"{writer} wrote twice in {longest} of {key}"))
            versions.append(Version(value, writer))
    return found, versions


def _seq_versions(key: str, writers: list[Txn]) -> list[Version]:
    """Order the versions of what is written blindly by the seqs of the commits."""
    versions = [Version(None if key[0] == "r" else False, None)]
    for txn in sorted(writers, key=lambda txn: txn.commit or 0):
        ops = [op for op in txn.ops if key in written(op) or (op.kind == "clear" and key.startswith(op.key + "/"))]
        state: dict[str, Any] = {}
        for op in ops:
            apply(op, state)
        value = state.get(key, versions[0].value)
        if ops[-1].kind != "clear" or value != versions[-1].value:  # else it was gone already, which is allowed
            versions.append(Version(value, txn))
    if len(versions) > 1 and (setup := versions[1].writer) is not None and setup.process == SETUP:
        del versions[0]  # nobody began before
    return versions


# --- who depends on whom
Edges = dict[str, dict[int, set[int]]]


def _dependencies(committed: list[Txn], read: list[Read], versions: dict[str, list[Version]], isolation: str) -> Edges:
    edges: Edges = {kind: defaultdict(set) for kind in ("ww", "wr", "rw", "so")}

    def add(kind: str, before: Txn | None, after: Txn | None) -> None:
        if before is not None and after is not None and before.id != after.id:
            edges[kind][before.id].add(after.id)

    for order in versions.values():
        for before, after in pairwise(order):
            add("ww", before.writer, after.writer)
    for txn, key, value in read:
        order = versions[key]
        same = [i for i, version in enumerate(order) if version.value == value]
        if same:
            # A member that was not there yet, or no longer: the newest of these that the base may have had. What a
            # serializable transaction has read is compared at its commit: gone and back again is as if nothing was.
            point = txn.base if isolation == "snapshot" or txn.commit is None else txn.commit - 1
            known = [i for i in same if _seq(order[i]) <= point]
            place = known[-1] if known else same[0]
            add("wr", order[place].writer, txn)
            if place + 1 < len(order):
                add("rw", txn, order[place + 1].writer)
    latest: dict[int, Txn] = {}
    for txn in committed:  # in the order of each process
        if txn.is_last:
            for other in committed:
                add("so", other, txn)
        else:
            add("so", latest.get(txn.process), txn)
            latest[txn.process] = txn
    return edges


def _seq(version: Version) -> int:
    return 0 if version.writer is None else version.writer.commit or 0


def _cycles(edges: Edges, isolation: str) -> Iterator[Anomaly]:
    def along(*kinds: str) -> Callable[[int], set[int]]:
        return lambda node: set().union(*(edges[kind].get(node, ()) for kind in kinds))

    def no_two_rw(state: tuple[int, bool]) -> list[tuple[int, bool]]:
        """Go on from a transaction, by one rw only if it was not reached by one."""
        node, by_rw = state
        ahead = [(after, False) for after in order(node)]
        return ahead if by_rw else ahead + [(after, True) for after in edges["rw"].get(node, ())]

    nodes = sorted({node for each in edges.values() for node in each})
    order = along("ww", "wr", "so")
    found = [
        ("G0", _find_cycle(nodes, along("ww"))),
        ("G1c", _find_cycle(nodes, order)),
        ("G-SI", [node for node, _ in _find_cycle([(node, False) for node in nodes], no_two_rw)]),
    ]
    if isolation == "serializable":
        found.append(("G2", _find_cycle(nodes, along("ww", "wr", "so", "rw"))))
    for name, cycle in found:
        if cycle:
            yield Anomaly(name, _described(cycle, edges))
            return


def _find_cycle(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> list[T]:
    """Return the nodes of one cycle that can be reached from some nodes, none if there is none."""
    done: set[T] = set()
    for start in starts:
        path: list[T] = []
        on_path: set[T] = set()
        stack: list[Iterator[T]] = []

        def enter(node: T) -> None:
            path.append(node)  # noqa: B023
            on_path.add(node)  # noqa: B023
            stack.append(iter(sorted(following(node))))  # noqa: B023

        if start not in done:
            enter(start)
        while stack:
            after = next(stack[-1], None)
            if after is None:
                stack.pop()
                node = path.pop()
                on_path.discard(node)
                done.add(node)
            elif after in on_path:
                return path[path.index(after) :]
            elif after not in done:
                enter(after)
    return []


def _described(cycle: list[int], edges: Edges) -> str:
    steps = []
    for before, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        kinds = [kind for kind in edges if after in edges[kind].get(before, ())]
        steps.append(f"T{before} -{'/'.join(kinds)}-> ")
    return "".join(steps) + f"T{cycle[0]}"


# --- what commits and bases say
def _process_faults(history: list[Txn]) -> Iterator[Anomaly]:
    """Yield transactions that began at an older commit than their process knew of."""
    known: dict[int, int] = {}
    newest = max((txn.commit or txn.base for txn in history), default=0)
    for txn in history:
        least = newest if txn.is_last else known.get(txn.process, 0)
        if txn.base < least:
            yield Anomaly("snapshot goes back", f"{txn} began at {txn.base}, its process knew {least}")
        known[txn.process] = max(least, txn.base, txn.commit or 0)


def snapshot_faults(history: list[Txn]) -> Iterator[Anomaly]:
    """Yield transactions, aborted ones too, that have read anything else than what its base is by the commits."""
    states = replay(history)
    for txn in history:
        if txn.base not in states:
            yield Anomaly("no such commit", f"{txn} began at {txn.base}")
            continue
        state = dict(states[txn.base])
        wrong, right = [], 0
        for op in txn.ops:
            if op.kind not in READS:
                apply(op, state)
            elif seen(op, state) == op.value:
                right += 1
            else:
                wrong.append(f"{op.value} of {op.key}, not {seen(op, state)}")
        if wrong:
            name = "fractured read" if right else "not of its snapshot"
            yield Anomaly(name, f"{txn}, begun at {txn.base}, read {'; '.join(wrong)}")
