"""The documents name what is there: pages, modules, tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
MODULE = re.compile(r"`((?:\w+/)*\w+\.(?:py|c|h))`")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_that_are_named_are_there(page: Path) -> None:
    for file, name in TEST.findall(page.read_text(encoding="utf-8")):
        path = ROOT / file
        assert path.exists(), file
        assert not name or re.search(rf"\b{name}\b", path.read_text(encoding="utf-8")), f"{file}::{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_modules_that_are_named_are_there(page: Path) -> None:
    for name in MODULE.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists() or (ROOT / "txstore" / name).exists(), name


def test_each_module_has_one_line_in_the_table() -> None:
    page = (ROOT / "docs/understand/architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `((?:\w+/)*\w+\.py)` \|", page, re.M)
    # A face says what its folder is for: the picture and the headings of the tables do, too.
    modules = [
        path.relative_to(ROOT / "txstore").as_posix()
        for path in (ROOT / "txstore").rglob("*.py")
        if path.name != "__init__.py" or len(ast.parse(path.read_text(encoding="utf-8")).body) > 1
    ]
    assert sorted(listed) == sorted(modules)
