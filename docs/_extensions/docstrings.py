"""Docstrings put code between single backticks, as Markdown does; reStructuredText wants two, and roles for links."""

from __future__ import annotations

import re
from typing import Any

import txstore
import txstore.constraints
import txstore.loaders

CODE = re.compile(r"(?<![`:\w])`([^`]+)`(?!`)")
PAGE = re.compile(r"(?<![`/\w])docs/([\w-]+/[\w-]+)\.md")
PUBLIC = {
    name: f"{module.__name__}.{name}"
    for module in (txstore.loaders, txstore.constraints, txstore)
    for name in module.__all__
}


def _code(found: re.Match[str]) -> str:
    code = " ".join(found[1].split())
    if page := PAGE.fullmatch(code):
        return f":doc:`/{page[1]}`"
    if code in PUBLIC:
        return f":py:obj:`{code} <{PUBLIC[code]}>`"
    return f"``{code}``"


def rewrite(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    text = CODE.sub(_code, "\n".join(lines))
    text = PAGE.sub(lambda found: f":doc:`/{found[1]}`", text)
    lines[:] = text.split("\n")


def setup(app: Any) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", rewrite, priority=400)  # before napoleon
    return {"parallel_read_safe": True}
