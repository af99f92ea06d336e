"""The directive `modules`: every module of `txstore/`, wing by wing, in the sentence with which it opens."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

PACKAGE = Path(__file__).parents[2] / "txstore"


def summary(path: Path) -> str:
    """Return the first paragraph of a module's docstring, or of the comment that a C or JavaScript file opens with."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(source)) or ""
    elif path.suffix == ".js":
        comment = re.match(r"(?://.*\n)+", source)
        text = re.sub(r"^// ?", "", comment[0] if comment else "", flags=re.M)
    else:
        comment = re.match(r"/\*(.*?)\*/", source, re.S)
        text = re.sub(r"^[ *]+", "", comment[1] if comment else "", flags=re.M).strip()
        text = re.sub(r"^(?:txstore\._native\.\w+|\w+\.h): ", "", text)
    told = " ".join(text.split("\n\n")[0].split())
    return told[:1].upper() + told[1:]


def listed() -> dict[str, list[Path]]:
    """Wing -> its files. A face without code of its own stands for its wing: its docstring is below the heading."""
    wings: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*")):
        inner = path.relative_to(PACKAGE)
        if path.suffix not in {".py", ".c", ".h", ".js"} or inner.parts[0] == "__pycache__" or "vendor" in inner.parts:
            continue
        if path.name == "__init__.py" and len(inner.parts) > 1 and _is_bare(path):
            continue
        wings[inner.parts[0] if len(inner.parts) > 1 else ""].append(path)
    return dict(wings)


def _is_bare(path: Path) -> bool:
    return len(ast.parse(path.read_text(encoding="utf-8")).body) <= 1


def _lines() -> Iterator[str]:
    for wing, paths in listed().items():
        yield from (f"## {wing or 'At the root'}", "")
        if wing:
            yield from (summary(PACKAGE / wing / "__init__.py"), "")
        yield from ("| module | what it is for |", "|---|---|")
        for path in paths:
            told = summary(path).replace("|", "\\|").replace("<", "&lt;")
            yield f"| `{path.relative_to(PACKAGE).as_posix()}` | {told} |"
        yield ""


class ModulesDirective(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        for paths in listed().values():
            for path in paths:
                self.env.note_dependency(str(path))
        made = nodes.Element()
        self.state.nested_parse(StringList(list(_lines()), "modules"), self.content_offset, made, match_titles=True)
        return made.children


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("modules", ModulesDirective)
    return {"parallel_read_safe": True}
