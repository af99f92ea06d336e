"""Random histories of up to five branches, made in a repository and in a model of git, merge by merge.

What git has in a file of its own is an element of a chunk, the element of an array without axes, an attribute, or a
value that is none of Zarr's. What zarr would store is written without zarr, which would take most of the time.
"""

import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import txstore
from tests.merging import recursive
from tests.merging.recursive import Asked, Git, History, Merge, Node

ELEMENTS = [f"x[{number}]" for number in range(6)]
CHUNK = 3
ATTRIBUTES = ["attributes.a", "attributes.b"]
PLACES = [*ELEMENTS, "n", *ATTRIBUTES, "note"]
#: What is written in a history. Among few values a change is often undone, or made by both; among many, never.
VALUES = [range(4), range(2), range(1 << 20)]
STEPS = 40
#: Merges are of what a branch was up to so many commits ago: then the two mostly have several best common ancestors.
RECENT = 14


def _document(shape: Sequence[int], attributes: Mapping[str, int]) -> bytes:
    return json.dumps({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "int32", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK] * len(shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": attributes,
    }).encode()  # fmt: skip


def stored(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return what zarr stores: no chunk that is all fill value."""
    content = {
        "x/zarr.json": _document([len(ELEMENTS)], {name[-1]: values[name] for name in ATTRIBUTES}),
        "n/zarr.json": _document([], {}),
        "note": str(values["note"]).encode(),
    }
    chunks = {f"x/c/{at}": ELEMENTS[at * CHUNK : (at + 1) * CHUNK] for at in range(len(ELEMENTS) // CHUNK)}
    for key, names in {**chunks, "n/c": ["n"]}.items():
        if any(values[name] for name in names):
            content[key] = np.array([values[name] for name in names], "<i4").tobytes()
    return content


def found(content: Mapping[str, bytes]) -> dict[str, int]:
    """Return the values of all places."""
    attributes = json.loads(content["x/zarr.json"])["attributes"]
    values = {name: attributes[name[-1]] for name in ATTRIBUTES} | {"note": int(content["note"])}
    for at in range(len(ELEMENTS) // CHUNK):
        chunk = np.frombuffer(content.get(f"x/c/{at}", bytes(4 * CHUNK)), "<i4")
        values |= dict(zip(ELEMENTS[at * CHUNK :], chunk.tolist(), strict=False))
    return values | {"n": int(np.frombuffer(content.get("n/c", bytes(4)), "<i4")[0])}


def in_conflict(error: txstore.MergeConflictError) -> frozenset[str]:
    """Return the places that an error is about."""
    places = set[str]()
    for each in error.conflicts:
        assert isinstance(each, txstore.merging.merge_conflicts.Conflict)
        if each.kind == "document":
            places.update(each.fields)
        elif each.region:
            places.update(ELEMENTS[each.region[0].start + int(at)] for at in np.flatnonzero(each.mask()))
        else:
            places.add(each.path)
    return frozenset(places)


class Player:
    """One history. `counts` says what it was made of; an `AssertionError` what is not as in git."""

    def __init__(self, seed: int, directory: Path, *, gives_up: bool, counts: Counter[str]) -> None:
        """With `gives_up`, branches are deleted, and vacuums give up what they may."""
        self.rng = random.Random(seed)
        self.gives_up = gives_up
        self.counts = counts
        self.repo = txstore.Repository(directory / "data.tx", durability="none")
        self.history = History()
        self.asked: list[tuple[Asked, Merge]] = []
        self.commits: dict[Node, txstore.Commit] = {}
        self.drawn_from = VALUES[seed // 2 % len(VALUES)]
        values = {place: self.rng.choice(self.drawn_from) for place in PLACES}
        self.record("main", values)
        self.heads = {"main": self.history.nodes[0]}
        for number in range(1, self.rng.randint(2, 5)):
            self.fork(f"b{number}", self.heads["main"])

    def play(self) -> None:
        for _ in range(STEPS):
            step = self.rng.choices(
                [self.write, self.merge_from, self.take_back, self.pick, self.replace, self.give_up_old],
                [30, 50, 4, 4, 3, 5 if self.gives_up else 0],
            )[0]
            step(self.rng.choice([*self.heads]))
        for branch, node in self.heads.items():
            self.check(branch, node)

    # --- steps

    def record(self, branch: str, values: Mapping[str, Any]) -> None:
        with self.repo.begin(branch=branch) as transaction:
            there = dict(transaction)
            wanted = stored(values)
            for key in there.keys() - wanted.keys():
                del transaction[key]
            for key, value in wanted.items():
                if there.get(key) != value:
                    transaction[key] = value
            transaction.commit()
        parents = [self.heads[branch]] if self.history.nodes else []
        self.note(branch, self.history.commit(values, *parents))

    def note(self, branch: str, node: Node) -> None:
        head = self.repo.head(branch)
        assert head is not None
        self.commits[node] = head
        if self.history.nodes[0] is not node:
            self.heads[branch] = node

    def check(self, branch: str, node: Node) -> None:
        assert found(self.repo.mapping(branch=branch)) == node.values, branch

    def write(self, branch: str) -> None:
        values = dict(self.heads[branch].values)
        own = PLACES[[*self.heads].index(branch) :: 5]  # mostly what no other branch writes
        for place in self.rng.sample(own if self.rng.random() < 0.8 else PLACES, self.rng.randint(1, 2)):
            value = values[place]
            while value == values[place]:
                value = self.rng.choice(self.drawn_from)
            values[place] = value
        self.record(branch, values)

    def fork(self, branch: str, node: Node) -> bool:
        """Begin a branch; false if the commit is not there any more."""
        try:
            self.repo.branches[branch] = self.commits[node]
        except (txstore.SnapshotExpiredError, txstore.CommitNotFoundError):
            assert self.gives_up
            return False
        self.heads[branch] = node
        return True

    def replace(self, branch: str) -> None:
        """Delete a branch, and begin it anew elsewhere."""
        if branch == "main" or not self.gives_up:
            return
        del self.repo.branches[branch], self.heads[branch]
        if not self.fork(branch, self.rng.choice(self.history.nodes)):
            self.fork(branch, self.heads["main"])

    def give_up_old(self, branch: str) -> None:
        self.repo.vacuum(keep=self.rng.randint(1, 6), branch=branch)

    def merge_from(self, into: str) -> None:
        ours = self.heads[into]
        news = [node for node in self.history.nodes[-RECENT:] if node not in ours.ancestors]
        if not news:
            return
        node = self.rng.choice(news)
        source = next((branch for branch, head in self.heads.items() if head is node), "then")
        if source == "then" and not self.fork("then", node):
            return
        self.heads.pop("then", None)
        expected = recursive.merge(ours, node)
        self.asked.append((Asked(ours, node), expected))
        self.counts["merges"] += 1
        self.counts["of several bases"] += len(recursive.best_common_ancestors(ours, node)) > 1
        answer = self.rng.choice([None, "ours", "theirs"])
        if self.agrees(expected, lambda resolve: self.repo.merge(source, into, resolve=resolve), answer):
            self.note(into, self.history.commit(_answered(expected, node, answer), ours, node))
            self.check(into, self.heads[into])
        if source == "then":
            del self.repo.branches["then"]

    def pick(self, branch: str, *, reverts: bool = False) -> None:
        node, ours = self.rng.choice(self.history.nodes[1:] or self.history.nodes), self.heads[branch]
        if not node.parents:
            return
        base, theirs = (node, node.parents[0]) if reverts else (node.parents[0], node)
        expected = recursive.three_way(base.values, ours.values, theirs.values)
        self.asked.append((Asked(ours, theirs, base), expected))
        self.counts["reverts" if reverts else "picks"] += 1
        change = self.repo.revert if reverts else self.repo.cherry_pick
        try:
            agrees = self.agrees(expected, lambda resolve: change(self.commits[node], branch, resolve=resolve), None)
        except (txstore.SnapshotExpiredError, txstore.CommitNotFoundError):
            assert self.gives_up
            return
        if agrees and expected.values != ours.values:
            self.note(branch, self.history.commit(expected.values, ours))
            self.check(branch, self.heads[branch])

    def take_back(self, branch: str) -> None:
        self.pick(branch, reverts=True)

    def agrees(self, expected: Merge, change: Any, answer: str | None) -> bool:
        """Merge; tell whether it was done. Conflicts are those of git, but where a vacuum has given up what tells."""
        try:
            change(None)
        except txstore.MergeConflictError as error:
            places = in_conflict(error)
            if places != expected.conflicts:
                if not (error.is_cut and self.gives_up and places > expected.conflicts):
                    raise AssertionError((places, expected)) from error
                self.counts["with more conflicts, of what a vacuum has given up"] += 1
                return False
            self.counts["conflicts"] += 1
        except txstore.NoCommonAncestorError:
            assert self.gives_up
            self.counts["refused, of what a vacuum has given up"] += 1
            return False
        else:
            assert not expected.conflicts, expected
            return True
        if answer is not None:
            change({"": answer})
        return answer is not None


def _answered(expected: Merge, theirs: Node, answer: str | None) -> dict[str, Any]:
    return expected.values | (
        {place: theirs.values[place] for place in expected.conflicts} if answer == "theirs" else {}
    )


def play(seed: int, counts: Counter[str], *, asks_git: bool = False) -> None:
    """Make the history of a seed. Raises `AssertionError` for what is not as in the model; with `asks_git`, in git."""
    directory = Path(tempfile.mkdtemp())
    try:
        player = Player(seed, directory, gives_up=bool(seed % 2), counts=counts)
        player.play()
        if asks_git and player.asked:
            (directory / "git").mkdir()
            answers = Git(directory / "git").answers(player.history, [asked for asked, _ in player.asked])
            for (_, expected), answer in zip(player.asked, answers, strict=True):
                assert answer.conflicts == expected.conflicts
                assert answer.values.items() == {
                    (place, value) for place, value in expected.values.items() if place not in expected.conflicts
                }
            counts["asked of git itself"] += len(answers)
    finally:
        shutil.rmtree(directory)
