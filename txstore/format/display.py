"""Formats reports: escapes names for terminals and notebooks, and renders sizes and tables in HTML. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any


def printable(content: str) -> str:
    """Show control characters by their escapes: what a repository says must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in content)


def readable_size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def html_text(content: str) -> str:
    return escape(printable(content))


def html_head(kind: str, told: str) -> str:
    """Return the first line of a report: of what kind it is, and what it says in short."""
    return f"<b>{html_text(kind)}</b> {html_text(told)}"


def html_lines(lines: Iterable[str]) -> str:
    """Return lines as they are, one below the other; nothing if there are none."""
    text = "\n".join(map(html_text, lines))
    return f"<pre>{text}</pre>" if text else ""


def html_table(rows: Iterable[Sequence[str]], names: Sequence[str] = (), *, left: int = 0) -> str:
    """Return a table of text; nothing if it has no rows. `left`: how many more rows there are than are shown."""
    body = "".join(f"<tr>{''.join(f'<td>{html_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    head = "".join(f"<th>{html_text(name)}</th>" for name in names)
    if not body:
        return ""
    more = f"<p>and {left:,} more</p>" if left > 0 else ""
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>{more}"


def plain(value: Any) -> Any:
    """Return what JSON can show. Numbers that are not finite become strings, as Zarr writes them; times end with Z."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
