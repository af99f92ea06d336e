"""What the tests of tools share: a repository, the two stores beside one another, and the results, one file a group."""

from __future__ import annotations

import json
import platform
from collections.abc import Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import zarr

import txstore
from tests.clients.trials import Both

#: Where the results lie of which `tests/clients/table.py` makes the table.
RESULTS = Path(__file__).parents[2] / "build/clients"
BOTH = pytest.StashKey[Both]()
#: By group: the row of each tool, and the tests that failed.
GROUPS = pytest.StashKey[dict[str, dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--untimed", action="store_true", help="run each program once over each store: no times")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tool: the tool that a test tries, and what the table tells of it")
    config.addinivalue_line("filterwarnings", "ignore:::(?!txstore)")  # what tools say about themselves
    config.stash[GROUPS] = {}


@pytest.fixture(autouse=True)
def pipeline() -> Iterator[None]:
    """Restore zarr's codec pipeline: iohub, for one, chooses another for the whole process."""
    assert txstore.TxStore  # whose import chooses ours
    with zarr.config.set({"codec_pipeline.path": zarr.config.get("codec_pipeline.path")}):
        yield


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[txstore.Repository]:
    """A repository that is verified when its test ends."""
    repo = txstore.Repository(tmp_path / "data.tx")
    yield repo
    if repo.exists:
        assert repo.verify().faults == []


@pytest.fixture
def both(tmp_path: Path, request: pytest.FixtureRequest) -> Both:
    request.node.stash[BOTH] = both = Both(tmp_path, timed=not request.config.getoption("untimed"))
    return both


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed or report.when == "call":
        group = item.config.stash[GROUPS].setdefault(item.path.parent.name, {"tools": {}, "failed": []})
        if report.failed:
            group["failed"].append(item.nodeid)
        for mark in item.iter_markers("tool"):
            _note(group["tools"], mark.kwargs, item, report)
    return report


def _note(tools: dict[str, Any], told: dict[str, Any], item: pytest.Item, report: pytest.TestReport) -> None:
    """Add what one test has found to the row of its tool."""
    row = tools.setdefault(
        told["name"],
        {"version": _version(told["package"]), "code": told["code"], "slower": "", "works": [], "limits": [],
         "times": [], "failed": []},
    )  # fmt: skip
    if report.failed:
        row["failed"].append(item.nodeid)
    elif report.passed:
        row["works"].append(told["tried"])
        row["slower"] = row["slower"] or told["slower"]
        if told["limit"]:
            row["limits"].append([told["limit"], told["whose"]])
        if BOTH in item.stash:
            row["times"] += [times.quickest() for times in item.stash[BOTH].times]


def _version(package: str) -> str:
    return platform.python_version() if package == "python" else version(package)


def pytest_sessionfinish(session: pytest.Session) -> None:
    for name, group in session.config.stash[GROUPS].items():
        RESULTS.mkdir(parents=True, exist_ok=True)
        told = {"python": platform.python_version(), "zarr": zarr.__version__, **group}
        (RESULTS / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
