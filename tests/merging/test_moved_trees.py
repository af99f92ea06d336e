"""Random trees of nodes, moved and changed on both sides, against a model in which a node is what it is, not where."""

import copy
import itertools
import json
import random
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import pytest

from tests.merging.sides import Changed
from txstore.format.keys import is_document, node_of_document
from txstore.format.mapping import Hierarchy
from txstore.merging.merge_conflicts import Answers
from txstore.merging.merge_side import Side
from txstore.merging.moved_nodes import Renaming, recognised
from txstore.merging.three_way import MergePlan, three_way

NAMES = "abde"  # "c" begins the keys of chunks
ARRAY = {
    "shape": [16], "data_type": "int32", "fill_value": 0, "codecs": [{"name": "bytes"}],
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}}, "chunk_key_encoding": {"name": "default"},
}  # fmt: skip


class Values(Hierarchy):
    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content
        self.keys_in_order = sorted(content)

    def get_view(self, key: str) -> memoryview | None:
        return memoryview(self.content[key]) if key in self.content else None

    def size_of(self, key: str) -> int | None:
        return len(self.content[key]) if key in self.content else None

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        for key in self.keys_in_order[bisect_left(self.keys_in_order, start) :]:
            if stop is not None and key >= stop:
                return
            yield key


class Node:
    def __init__(self, kind: str, above: int | None, name: str) -> None:
        self.kind, self.place = kind, (above, name)
        self.attributes: dict[str, int] = {}
        self.chunks: dict[int, bytes] = {}

    @property
    def state(self) -> Any:
        return self.place, self.attributes, self.chunks


class Tree:
    """Nodes by what they are: numbers."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {0: Node("group", None, "")}

    def path(self, number: int) -> str:
        above, name = self.nodes[number].place
        return f"{self.path(above)}/{name}".lstrip("/") if above is not None else ""

    def below(self, number: int) -> list[int]:
        found = [number]
        for each in found:
            found += [other for other, node in self.nodes.items() if node.place[0] == each]
        return found

    def rendered(self) -> dict[str, bytes]:
        found = {}
        for number, node in self.nodes.items():
            prefix = f"{self.path(number)}/".lstrip("/")
            document = {
                "zarr_format": 3, "node_type": node.kind, "attributes": {"is": number, **node.attributes},
                **(ARRAY if node.kind == "array" else {}),
            }  # fmt: skip
            found[f"{prefix}zarr.json"] = json.dumps(document).encode()
            found |= {f"{prefix}c/{chunk}": value for chunk, value in node.chunks.items()}
        return found


class Editor:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.numbers = itertools.count(1)
        self.once: set[str] = set()  # paths of the base: nothing takes the place of what was there

    def value(self) -> bytes:
        return b"%d" % next(self.numbers)

    def free(self, tree: Tree) -> tuple[int, str] | None:
        above = self.chance.choice([number for number, node in tree.nodes.items() if node.kind == "group"])
        place = above, self.chance.choice(NAMES)
        path = f"{tree.path(above)}/{place[1]}".lstrip("/")
        is_free = path not in self.once and all(node.place != place for node in tree.nodes.values())
        return place if is_free else None

    def make(self, tree: Tree) -> None:
        place = self.free(tree)
        if place is not None:
            node = Node(self.chance.choice(["array", "group"]), *place)
            tree.nodes[next(self.numbers)] = node
            if node.kind == "array":
                node.chunks = {chunk: self.value() for chunk in range(4) if self.chance.random() < 0.6}

    def change(self, tree: Tree, who: int) -> None:
        numbers = [number for number in tree.nodes if number]
        what = self.chance.random()
        if what < 0.15 or not numbers:
            self.make(tree)
            return
        number = self.chance.choice(numbers)
        node, place = tree.nodes[number], self.free(tree)
        if what < 0.6:
            if place is not None and place[0] not in tree.below(number):
                node.place = place
        elif what < 0.7:
            for each in tree.below(number):
                del tree.nodes[each]
        elif what < 0.8:
            node.attributes[f"of {who}"] = next(self.numbers)
        elif node.kind == "array":
            node.chunks[2 * who + self.chance.randrange(2)] = self.value()


def both(base: Tree, ours: Tree, theirs: Tree) -> Tree | None:
    """Return what comes of it; None where it is a conflict."""
    tree = Tree()
    for number in base.nodes.keys() | ours.nodes.keys() | theirs.nodes.keys():
        was, *sides = (each.nodes.get(number) for each in (base, ours, theirs))
        here = [each for each in sides if each is not None]
        if was is None:
            tree.nodes[number] = here[0]
        elif len(here) == 1 and here[0].state != was.state:
            return None
        elif len(here) == 2:
            found = tree.nodes[number] = copy.deepcopy(here[0])
            places = {each.place for each in here if each.place != was.place}
            if len(places) > 1:
                return None
            found.place = next(iter(places), was.place)
            found.attributes |= here[1].attributes
            found.chunks |= {k: v for k, v in here[1].chunks.items() if v != was.chunks.get(k)}
    for number in tree.nodes:
        passed, each = [], number
        while each and each not in passed:
            passed.append(each)
            above = tree.nodes[each].place[0]
            if above not in tree.nodes:
                return None
            each = above
        if each:
            return None
    return tree if len({node.place for node in tree.nodes.values()}) == len(tree.nodes) else None


def side(base: Values, view: Values) -> Side:
    before, after = base.content, view.content
    changes = {k: Changed(after.get(k)) for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
    gone = {key: before[key] for key, change in changes.items() if change.after is None}
    made = {key: after[key] for key in changes if key not in before}
    return Side(view, changes, recognised(base, view, gone, made), lambda was, is_now: before[was] == after[is_now])


def applied(plan: MergePlan, ours: Values, theirs: Values) -> dict[str, Any]:
    place = Renaming(plan.moved)
    content = {place.of(key): value for key, value in ours.content.items()}
    assert len(content) == len(ours.content)
    for key in [*plan.deleted, *(key for path in plan.deleted_below for key in content if key.startswith(path + "/"))]:
        content.pop(key, None)
    content |= plan.values | {key: theirs.content[source] for key, source in plan.taken.items()}
    return {key: json.loads(value) if is_document(key) else value for key, value in content.items()}


def check_whole(content: dict[str, Any]) -> None:
    """See that each node has the group above it, and each chunk its array."""
    for key in content:
        if is_document(key):
            path = node_of_document(key)
            above, kind = path.rpartition("/")[0], "group"
        else:
            path, kind = key, "array"
            above = key.rpartition("c/")[0].rstrip("/")
        if path:
            assert content[f"{above}/zarr.json".lstrip("/")]["node_type"] == kind, key


@pytest.mark.parametrize("start", range(0, 2000, 250))
def test_nodes_are_where_they_belong(start: int) -> None:
    compared = 0
    for seed in range(start, start + 250):
        editor, trees = Editor(seed), [Tree()]
        for _ in range(editor.chance.randint(2, 7)):
            editor.make(trees[0])
        editor.once = {trees[0].path(number) for number in trees[0].nodes}
        trees += copy.deepcopy(trees[0]), copy.deepcopy(trees[0])
        for who, tree in enumerate(trees[1:]):
            for _ in range(editor.chance.randint(1, 4)):
                editor.change(tree, who)
        base, ours, theirs = (Values(tree.rendered()) for tree in trees)
        sides = side(base, ours), side(base, theirs)
        plan = three_way(base, *sides)
        for answer in ("ours", "theirs") if plan.conflicts else ():
            answered = three_way(base, *sides, Answers({"": answer}))
            assert answered.conflicts == []
            check_whole(applied(answered, ours, theirs))
        reverse = three_way(base, *reversed(sides))
        assert bool(reverse.conflicts) == bool(plan.conflicts), seed
        if not plan.conflicts:
            found, expected = applied(plan, ours, theirs), both(*trees)
            check_whole(found)
            assert found == applied(reverse, theirs, ours)
            if expected is not None:  # else both have written all of a node anew, and it is two
                assert found == applied(MergePlan(), Values(expected.rendered()), ours), seed
                compared += 1
    assert compared > 100
