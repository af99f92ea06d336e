"""What the source looks like from far: `make walks` prints it below the walks, with what it may be at most.

Counts what makes it hard to find one's way in code: large classes, names that stand for two things, methods that only
pass on, questions of what a storage is, and words without an actor.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "txstore"

MOST_METHODS, MOST_FIELDS = 40, 15
#: The facade that users hold: all of the library is asked of it.
FACADES = {"Repository"}
#: What asks where a storage is, in place of what it can do.
_ASKS = re.compile(
    r"\.is_remote\b|ranges is (?:not )?None|isinstance\([^()]*, \(?RemoteStorage|"
    r"lock_excludes_all|takes_turns|\.pins_are_seen|may_come_late|\.makes_requests\b|\.maps_files\b|capabilities\.lock_of"
)
_VAGUE = re.compile(r"\b(?:whoever|nobody|so many|those (?:who|that))\b", re.IGNORECASE)


class Count(NamedTuple):
    what: str
    most: int
    found: list[str]  # where
    total: int | None = None  # where each is not one

    @property
    def number(self) -> int:
        return len(self.found) if self.total is None else self.total


def _sources() -> dict[str, str]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def _c_sources() -> dict[str, str]:
    paths = sorted(path for end in ("*.c", "*.h") for path in PACKAGE.rglob(end))
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in paths}


def _classes(trees: dict[str, ast.Module]) -> Iterator[tuple[str, ast.ClassDef]]:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield path, node


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def _fields(node: ast.ClassDef) -> set[str]:
    """Return the attributes that the class sets on `self`."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def _is_forward(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a method does nothing but call the same name of something that its object has."""
    body = [each for each in method.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr) or body[0].value is None:
        return False
    value = body[0].value
    if isinstance(value, ast.Await):
        value = value.value
    if isinstance(value, ast.Call):
        value = value.func
    if not isinstance(value, ast.Attribute) or value.attr != method.name:
        return False
    above = value.value
    while isinstance(above, ast.Attribute):
        above = above.value
    return isinstance(above, ast.Name) and above.id == "self" and value.value is not above


def counts() -> list[Count]:
    python, c = _sources(), _c_sources()
    trees = {path: ast.parse(text) for path, text in python.items()}
    classes = list(_classes(trees))
    by_name = defaultdict(list)
    for path, node in classes:
        by_name[node.name].append(path)
    large = [
        f"{path}: {node.name}, {len(_methods(node))} methods, {len(_fields(node))} fields"
        for path, node in classes
        if node.name not in FACADES and (len(_methods(node)) > MOST_METHODS or len(_fields(node)) > MOST_FIELDS)
    ]
    asks = [
        f"{path}:{number}"
        for path, text in python.items()
        for number, line in enumerate(text.splitlines(), 1)
        for _ in _ASKS.finditer(line)
    ]
    vague = Counter({path: len(_VAGUE.findall(text)) for path, text in (python | c).items()})
    lines = {path: text.count("\n") for path, text in (python | c).items()}
    return [
        Count(f"classes of more than {MOST_METHODS} methods or {MOST_FIELDS} fields", 0, large),
        Count(
            "class names given more than once",
            0,
            [f"{name}: {', '.join(paths)}" for name, paths in sorted(by_name.items()) if len(paths) > 1],
        ),
        Count(
            "methods that only pass on to the same name",
            15,
            [
                f"{path}: {node.name}.{each.name}"
                for path, node in classes
                for each in _methods(node)
                if _is_forward(each)
            ],
        ),
        Count("places that ask what a storage is", 9, asks),
        Count(
            "words without an actor (whoever, nobody, so many, those that)",
            30,
            [f"{path}: {number}" for path, number in vague.most_common() if number],
            vague.total(),
        ),
        Count("lines of Python and C", 50_000, [], sum(lines.values())),
    ]


def report(show: bool = False) -> int:
    """Print all counts, and where with `show`; return how many are missed."""
    missed = 0
    for count in counts():
        over = count.number > count.most
        missed += over
        print(f"{count.number:8,}  {count.what}{f'   at most {count.most:,}' if over else ''}")
        for each in count.found if show else ():
            print(f"          {each}")
    return missed


if __name__ == "__main__":
    sys.exit(1 if report("--show" in sys.argv) else 0)
