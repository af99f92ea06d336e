"""What git's recursive strategy makes of two commits: a model in a page, and git itself to compare it with.

A commit is a dict of places with values; for git, each is a file of one line. Where the common ancestors of two commits
can't be merged, the base gets a `Marked`, as git writes conflict markers to a file.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

Value: TypeAlias = "int | Marked"
Values: TypeAlias = Mapping[str, Value]


class Marked(NamedTuple):
    """Both sides of a conflict, as they stand between conflict markers, which are longer in the base of a base."""

    depth: int
    ours: Value
    theirs: Value


@dataclass(frozen=True, eq=False)
class Node:
    number: int  # in the order of time; of what was never committed, below 0
    values: Values
    parents: Sequence[Node] = ()
    ancestors: frozenset[Node] = frozenset()  # with itself


class Merge(NamedTuple):
    values: dict[str, Value]
    conflicts: frozenset[str]


class History:
    """Commits, the oldest first."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def commit(self, values: Values, *parents: Node) -> Node:
        made = _node(len(self.nodes), values, parents)
        self.nodes.append(made)
        return made


def _node(number: int, values: Values, parents: Sequence[Node]) -> Node:
    made = Node(number, dict(values), parents)
    object.__setattr__(made, "ancestors", frozenset([made]).union(*(parent.ancestors for parent in parents)))
    return made


def best_common_ancestors(one: Node, other: Node) -> list[Node]:
    common = one.ancestors & other.ancestors
    best = [node for node in common if not any(node in each.ancestors for each in common if each is not node)]
    return sorted(best, key=lambda node: node.number)


def merge(ours: Node, theirs: Node, depth: int = 0) -> Merge:
    base, *rest = best_common_ancestors(ours, theirs)
    for node in rest:
        base = _node(-1, merge(base, node, depth + 1).values, (base, node))
    return three_way(base.values, ours.values, theirs.values, depth)


def three_way(base: Values, ours: Values, theirs: Values, depth: int = 0) -> Merge:
    values, conflicts = dict[str, Value](), set[str]()
    for place, mine in ours.items():
        other = theirs[place]
        if mine in (other, base[place]):
            values[place] = other
        elif other == base[place]:
            values[place] = mine
        else:
            values[place] = Marked(depth, mine, other) if depth else mine
            conflicts.add(place)
    return Merge(values, frozenset(conflicts))


# --- git itself
class Asked(NamedTuple):
    """Two commits to be merged; with a base, as if that were the parent of both: a commit picked, or reverted."""

    ours: Node
    theirs: Node
    base: Node | None = None


class Git:
    """The same history in a git repository, of which the same is asked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.call("init", "-q", "--bare", ".")

    def answers(self, history: History, asked: Sequence[Asked]) -> list[Merge]:
        """Return what becomes of the values, but of those in conflict, and which these are."""
        heads = [(node, [parent.number for parent in node.parents]) for node in history.nodes]
        pairs = []
        for each in asked:
            if each.base is None:
                pairs.append((each.ours.number, each.theirs.number))
                continue
            base = len(heads)
            heads += [(each.base, []), (each.ours, [base]), (each.theirs, [base])]
            pairs.append((base + 1, base + 2))
        names = self.import_all(heads)
        question = "".join(f"{names[ours]} {names[theirs]}\n" for ours, theirs in pairs)
        answer = self.call(
            "merge-tree", "--write-tree", "--stdin", "-z", "--name-only", "--no-messages", stdin=question
        )
        return [*self.parse(answer, len(pairs))]

    def import_all(self, heads: Iterable[tuple[Node, list[int]]]) -> list[str]:
        lines = []
        count = 0
        for number, (node, parents) in enumerate(heads):
            count += 1
            lines += [
                f"commit refs/heads/n{number}",
                f"mark :{number + 1}",
                f"committer n <n> {1000 + number} +0000",
                "data 0",
            ]
            lines += [f"{'merge' if place else 'from'} :{parent + 1}" for place, parent in enumerate(parents)]
            lines.append("deleteall")
            for place, value in node.values.items():
                text = f"{value}\n"
                lines += [f"M 644 inline {place}", f"data {len(text)}", text]
        marks = self.directory / "marks"
        self.call("fast-import", "--quiet", "--force", f"--export-marks={marks}", stdin="\n".join(lines) + "\n")
        found = dict(line.split() for line in marks.read_text().splitlines())
        return [found[f":{number + 1}"] for number in range(count)]

    def parse(self, answer: str, count: int) -> Iterable[Merge]:
        parts = iter(answer.split("\0"))
        trees, conflicts = [], []
        for _ in range(count):
            is_clean, tree = next(parts) == "1", next(parts)
            names = set[str]()
            while name := next(parts):
                names.add(name)
            assert is_clean is not bool(names)
            trees.append(tree)
            conflicts.append(frozenset(names))
        for tree, names in zip(trees, conflicts, strict=True):
            files = self.call("ls-tree", tree).splitlines()
            blobs = [line.split()[2] for line in files]
            texts = self.call("cat-file", "--batch=%(objectsize)", stdin="\n".join(blobs) + "\n")
            values = {}
            for line in files:
                size, _, texts = texts.partition("\n")
                text, texts = texts[: int(size)], texts[int(size) + 1 :]
                if (place := line.split("\t")[1]) not in names:
                    values[place] = int(text)
            yield Merge(values, names)

    def call(self, *arguments: str, stdin: str = "") -> str:
        return subprocess.run(
            ["git", "-C", str(self.directory), *arguments], input=stdin, capture_output=True, text=True, check=True
        ).stdout
