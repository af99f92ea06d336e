"""How much there is to hold in one's head: `make walks` and `make check` print each figure beside its bound.

A figure above its bound must not be above what `gauge.json` says: each commit may lower that, with `--lower`, and none
may raise it. So the code comes to its bounds step by step, and never goes back.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from benchmarks.code.walks import all_walks

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).with_name("gauge.json")
#: What a commit goes through: these folders below txstore/, and these modules.
CORE = {
    "_native", "format", "storage", "locks", "history", "segments", "transactions", "deriving",
    "sessions", "pipeline", "codecs", "store.py", "engine.py", "errors.py", "zarr_interface.py", "commit.py",
}  # fmt: skip

#: The most that each figure may be.
BOUNDS = {
    "Python and C below txstore/, lines": 68_000,
    "of these the core, lines": 40_000,
    "JavaScript of the page and the reader, lines": 5_600,
    "modules": 290,
    "classes": 560,
    "protocols": 25,
    "modules with one importer or none": 70,
    "arguments of the largest constructor": 6,
    "files that name zarr.core": 1,
    "local write, files": 25,
    "local write, hops": 55,
    "local commit, files": 40,
    "local commit, hops": 200,
    "remote commit, files": 50,
    "remote commit, hops": 250,
    "merge, hops": 400,
    "tests, lines": 65_000,
    "tests, lines that touch a private name": 100,
    "tests, monkeypatch.setattr": 100,
    "tests, .engine.": 20,
    "benchmarks, lines": 5_000,
    "documents, words": 60_000,
}

_PRIVATE = re.compile(r"\._[a-z]")


def _texts(paths: Iterable[Path]) -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(paths)}


def _lines(texts: Mapping[Path, str]) -> int:
    return sum(text.count("\n") for text in texts.values())


def _lines_with(texts: Mapping[Path, str], found: Callable[[str], object]) -> int:
    return sum(1 for text in texts.values() for line in text.splitlines() if found(line))


def _importers(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return which modules import each module, late and for type checkers, too."""
    importers: dict[str, set[str]] = {name: set() for name in trees}
    for importer, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                module = name if name in trees else name.rpartition(".")[0]
                if module in trees and module != importer:
                    importers[module].add(importer)
    return importers


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _arguments(function: ast.FunctionDef) -> int:
    arguments = function.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1  # self


def static_figures() -> dict[str, int]:
    """Return what the sources say."""
    package = ROOT / "txstore"
    python = _texts(package.rglob("*.py"))
    sources = python | _texts(package.rglob("*.[ch]"))
    core = {path: text for path, text in sources.items() if path.relative_to(package).parts[0] in CORE}
    trees = {_module_name(path): ast.parse(text) for path, text in python.items()}
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    constructors = [
        node for each in classes for node in each.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    tests = _texts((ROOT / "tests").rglob("*.py"))
    documents = _texts([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
    return {
        "Python and C below txstore/, lines": _lines(sources),
        "of these the core, lines": _lines(core),
        "JavaScript of the page and the reader, lines": _lines(_texts(package.rglob("*.js"))),
        "modules": len(python),
        "classes": len(classes),
        "protocols": sum(any("Protocol" in ast.unparse(base) for base in each.bases) for each in classes),
        "modules with one importer or none": sum(len(each) <= 1 for each in _importers(trees).values()),
        "arguments of the largest constructor": max(map(_arguments, constructors)),
        "files that name zarr.core": sum("zarr.core" in text for text in python.values()),
        "tests, lines": _lines(tests),
        "tests, lines that touch a private name": _lines_with(tests, _PRIVATE.search),
        "tests, monkeypatch.setattr": _lines_with(tests, lambda line: "monkeypatch.setattr" in line),
        "tests, .engine.": _lines_with(tests, lambda line: ".engine." in line),
        "benchmarks, lines": _lines(_texts((ROOT / "benchmarks").rglob("*.py"))),
        "documents, words": sum(len(text.split()) for text in documents.values()),
    }


def walked_figures() -> dict[str, int]:
    """Return how far the usual calls go, the least of three times: who was held up looks again at what others did."""
    found: dict[str, int] = {}
    for walked in (all_walks() for _ in range(3)):
        for walk, counted in walked.items():
            _, _, files, hops = counted.row()
            for name, figure in ((f"{walk}, files", files), (f"{walk}, hops", hops)):
                if name in BOUNDS:
                    found[name] = min(figure, found.get(name, figure))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.code.gauge", description=__doc__)
    parser.add_argument("--lower", action="store_true", help="record the figures that are lower than what is recorded")
    lower = parser.parse_args().lower
    recorded: dict[str, int] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    figures = static_figures()
    if sys.version_info >= (3, 12):  # which has sys.monitoring
        figures |= walked_figures()
    missed = 0
    print(f"{'':48}{'is':>9}{'at most':>9}{'was':>9}")
    for name, bound in BOUNDS.items():
        was, figure = recorded.get(name), figures.get(name)
        if figure is None:
            continue
        is_worse = was is not None and figure > max(was, bound)
        missed += is_worse
        worse = "   MORE THAN BEFORE" if is_worse else ""
        print(f"{name:48}{figure:9,}{bound:9,}{figure if was is None else was:9,}{worse}")
    if lower:
        recorded = {name: min(figure, recorded.get(name, figure)) for name, figure in (recorded | figures).items()}
        RECORDED.write_text(json.dumps({name: recorded[name] for name in BOUNDS if name in recorded}, indent=2) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
