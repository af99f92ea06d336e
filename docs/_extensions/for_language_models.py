"""`llms.txt`: where each page is and what it begins with; `llms-full.txt`: the pages as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes

SUMMARY = "Transactions for Zarr: a store for zarr-python whose writes become visible together, or not at all."


def _begins(tree: nodes.document) -> str:
    for paragraph in tree.findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        first, dot, _ = text.partition(". ")
        return first + dot.strip()
    return ""


def write(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    wings: dict[str, list[str]] = {}
    pages = []
    for name in sorted(app.env.found_docs):
        tree = app.env.get_doctree(name)
        title = app.env.titles[name].astext()
        wing = name.partition("/")[0] if "/" in name else ""
        wings.setdefault(wing, []).append(f"- [{title}]({app.builder.get_target_uri(name)}): {_begins(tree)}")
        pages.append(Path(app.env.doc2path(name)).read_text(encoding="utf-8").strip())
    lines = [f"# {app.config.project}", "", f"> {SUMMARY}"]
    for wing, entries in wings.items():
        lines += ["", *([f"## {wing}", ""] if wing else []), *entries]
    out = Path(app.outdir)
    (out / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / "llms-full.txt").write_text("\n\n---\n\n".join(pages) + "\n", encoding="utf-8")


def setup(app: Any) -> dict[str, Any]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
