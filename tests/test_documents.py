"""The documents name what is there: pages, modules, tests."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import txstore
import txstore.aio
import txstore.constraints
import txstore.loaders
import txstore.pipeline
import txstore.views

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
#: Programs that a page tells its reader to write.
OF_THE_READER = {"task.py"}
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
        assert name in OF_THE_READER or (ROOT / name).exists() or (ROOT / "txstore" / name).exists(), name


def test_each_module_says_what_it_is() -> None:
    """The table of modules is made of the first paragraphs of their docstrings."""
    for path in sorted((ROOT / "txstore").rglob("*.py")):
        told = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
        assert told.endswith("."), path
        assert 10 <= len(told) <= 200, path


def test_a_glossary_can_be_read() -> None:
    terms = re.findall(r"^[a-z].*$", (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8"), re.M)
    assert terms == sorted(terms)
    assert len(terms) <= 40


def test_the_picture_has_each_wing() -> None:
    picture = (ROOT / "docs/images/wings.svg").read_text(encoding="utf-8")
    named = {name for names in re.findall(r"<tspan>(.*?)</tspan>", picture) for name in names.split(", ")}
    wings = {path.parent.name for path in (ROOT / "txstore").glob("*/__init__.py")}
    assert wings - named == set()


def documented() -> set[str]:
    """Names that the reference takes from their docstrings."""
    found = set()
    for page in (ROOT / "docs/reference").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        found |= set(re.findall(r"^\.\. auto(?:class|data|exception|function):: (\S+)$", text, re.M))
        for module, members in re.findall(r"^\.\. automodule:: (\S+)\n   :members: (.+)$", text, re.M):
            found |= {f"{module}.{name}" for name in members.split(", ")}
    return found


def test_every_public_name_is_in_the_reference() -> None:
    modules = {"aio", "constraints", "loaders", "views"}  # of txstore: their names follow
    public = {f"txstore.{name}" for name in txstore.__all__ if name not in modules}
    for module in (txstore.aio, txstore.constraints, txstore.loaders, txstore.views):
        public |= {f"{module.__name__}.{name}" for name in module.__all__}
    assert public - documented() == set()


def test_every_public_method_has_a_docstring() -> None:
    for name in ("Append", "Commit", "NamedTransaction", "Repository", "Snapshot", "TxStore"):
        kind = getattr(txstore, name)
        bare = [
            method
            for method, found in vars(kind).items()
            if not method.startswith("_")
            and (callable(found) or isinstance(found, (property, classmethod, staticmethod)))
            and not inspect.getdoc(getattr(kind, method))
        ]
        assert not bare, f"{name}: {bare}"


def test_every_error_has_its_three_usual_causes() -> None:
    _, *sections = re.split(r"^## ", (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8"), flags=re.M)
    causes = {section.partition("\n")[0]: re.findall(r"^(\d)\. ", section, re.M) for section in sections}
    kinds = [getattr(txstore, name) for name in txstore.__all__]
    errors = [kind.__name__ for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception)]
    assert sorted(causes) == sorted(errors)
    assert {tuple(numbers) for numbers in causes.values()} == {("1", "2", "3")}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_sentences_of_the_first_pages_are_short() -> None:
    for page in ("README.md", "docs/index.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        text = re.sub(r"<!-- measured: make.*?<!-- measured: end -->", "", text, flags=re.S)
        text = re.sub(r"^(```|:::|\|).*?$", ".", re.sub(r"^```.*?^```$", ".", text, flags=re.S | re.M), flags=re.M)
        text = re.sub(r"\]\([^)]*\)", "]", text)
        for sentence in re.split(r"(?<=[.:;!?])\s|\n\s*\n|\n- ", text):
            assert len(sentence.split()) <= 30, sentence
