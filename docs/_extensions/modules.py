"""The directive `modules`: every module of the package and what its docstring says first, a table for each folder."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

PACKAGE = Path(__file__).parents[2] / "txstore"


def summaries(package: Path = PACKAGE) -> dict[str, dict[str, str]]:
    """Return the first paragraph of each module's docstring, by folder and file name; "" is the package itself."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for path in sorted(package.rglob("*.py")):
        folder = path.parent.relative_to(package).as_posix().removeprefix(".")
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[folder][path.name] = re.sub(r"\s+", " ", docstring.partition("\n\n")[0])
    return dict(found)


class ModulesDirective(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        for folder, modules in sorted(summaries().items()):
            lines += [f"## {folder or 'txstore'}", "", modules.pop("__init__.py"), ""]
            lines += ["| module | what it is |", "|---|---|"] if modules else []
            lines += [f"| `{name}` | {told.replace('|', chr(92) + '|')} |" for name, told in modules.items()]
            lines.append("")
        made = nodes.Element()
        self.state.nested_parse(StringList(lines, "modules"), self.content_offset, made, match_titles=True)
        return made.children


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("modules", ModulesDirective)
    return {"parallel_read_safe": True}
