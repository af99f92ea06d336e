"""Reports are shown: in one short line, and in notebooks as HTML; nothing in them steers a terminal or a page."""

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.inside import html
from txstore.format.display import html_table, readable_size
from txstore.maintenance.report import Fault, Repair, Report

HOSTILE = "<script>\x1b[31m&"


class _Balance(HTMLParser):
    """Notes which elements are open, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag != "script"
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def text_of(report: object) -> str:
    """Return what a notebook shows, as text; what is printed is one short line."""
    shown = repr(report)
    assert "\n" not in shown
    assert shown[0] == "<"
    assert len(shown) < 200
    found = html(report)
    assert "\x1b" not in found + shown
    return _Balance(found).text


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction(HOSTILE) as store:
        zarr.create_array(store, name="g<b>/x", data=np.arange(10), chunks=(5,), attributes={"a": 1})
        zarr.create_array(store, name="y", data=np.arange(10), chunks=(5,))
    repo.branches["dev"] = repo.head()
    for branch in ("main", "dev"):
        with repo.transaction(f"on {branch}", branch=branch) as store:
            zarr.open_array(store, path="y")[0] = len(branch)
    return repo


def test_of_names(filled: txstore.Repository) -> None:
    filled.tags["v1"] = filled.commit(0)
    filled.constraints["named"] = txstore.constraints.RequiredAttributes("g<b>/x", ["a"])
    for names, expected in (
        (filled.tags, ["v1", "main@0", "<script>"]),
        (filled.branches, ["main", "dev", "dev@1", "on dev"]),
        (filled.constraints, ["named", "RequiredAttributes", '"path": "g<b>/x"']),
    ):
        shown = html(names)
        assert "\x1b" not in shown
        text = _Balance(shown).text
        assert not [each for each in expected if each not in text]


def test_of_many_names(filled: txstore.Repository) -> None:
    for number in range(25):
        filled.tags[f"v{number}"] = 0
    assert "and 5 more" in _Balance(html(filled.tags)).text


def test_of_history(filled: txstore.Repository) -> None:
    assert "on main" in text_of(filled.head())
    assert "main@1" in _Balance(html(filled.log())).text
    assert "<script>" in _Balance(html(filled.log())).text
    assert "1 changed" in text_of(filled.diff(0, 1))
    assert "1 chunks" in text_of(filled.blame("y"))


def test_of_merges(filled: txstore.Repository) -> None:
    plan = filled.merge("dev", dry_run=True)
    assert "1 conflicts" in text_of(plan)
    assert repr(plan) == "<MergePlan: 1 conflicts>"
    [conflict] = plan.conflicts
    assert repr(conflict) == "<Conflict elements: 'y' [0:1]>"
    assert "[0:1]" in text_of(conflict)


def test_of_maintenance(filled: txstore.Repository, tmp_path: Path) -> None:
    assert repr(filled.verify()).startswith("<Report: 0 faults in 3 commits, ")
    assert "0 faults" in text_of(filled.verify())
    usage = filled.usage()
    assert repr(usage).startswith(f"<Usage {readable_size(usage.total)}: {readable_size(usage.live)} live, ")
    assert "g<b>/x" in text_of(usage)
    assert "0 files (0 B) deleted" in text_of(filled.vacuum())
    assert "commits up to version 1" in text_of(filled.backup(tmp_path / "backup.tx"))
    report = filled.erase("g<b>")
    assert "4 values" in text_of(report)
    assert f"as {filled.head()}" in repr(report)
    assert "'g<b>' by" in text_of(filled.erasures()[0])
    assert "nothing was left" in text_of(filled.erase("g<b>"))


def test_of_faults() -> None:
    fault = Fault("packs/00", HOSTILE, 64, f"a/{HOSTILE}", "value", ("1" * 32,), 1)
    assert repr(fault) == "<Fault value: packs/00 at byte 64>"
    assert "<script>" in text_of(fault)
    report = Report(faults=[fault] * 1000, repairs=[Repair("packs/01", "made anew")])
    shown = text_of(report)
    assert ("and 950 more" in shown, "made anew" in shown) == (True, True)


def test_a_table() -> None:
    assert html_table([]) == html_table([], ["a"]) == ""
    assert _Balance(html_table([["<", "&"]], ["a", "b"], left=3)).text == "ab<&and 3 more"
