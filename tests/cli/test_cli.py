"""The commands: what they print, as text and as JSON, and how they fail."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

import txstore
import txstore.cli.demo
from tests.tools.command_line import assert_refused, run, run_json
from txstore.cli.main import app
from txstore.constraints import OnlyGrows, Sorted

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    """Two commits: a group with an array, and two more arrays; then some chunks."""
    with repo.transaction("create [all] of it\nat length", properties={"run": 3, "by": {"whom": "me"}}) as store:
        group = zarr.create_group(store, path="storm")
        group.create_array("position", shape=(10, 4), chunks=(5, 4), dtype="f8")
        zarr.create_array(store, name="scalar", shape=(), dtype="i4")
        zarr.create_array(store, name="old", shape=(6,), chunks=(2,), dtype="u1")
    with repo.transaction("fill") as store:
        zarr.open_array(store, path="storm/position")[:5] = 1.0
        zarr.open_array(store, path="old")[:] = np.arange(1, 7)
    repo.tags["v1"] = 0
    return repo


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"txstore {txstore.__version__}\n")


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("uvicorn", ["serve", None], "serve"),
        ("h5py", ["import", "old.h5", None, "--path", "imported"], "import"),
        ("xarray", ["import", "old.nc", None, "--path", "imported"], "import"),
        ("pandas fastparquet", ["references", None, "x.parquet", "--tag", "v1"], "references"),
        ("matplotlib", ["demo"], "demo"),
    ],
)
def test_a_missing_package(missing, arguments, extra, filled, tmp_path):
    """One line, which says what to install."""
    for name in ("old.h5", "old.nc"):
        (tmp_path / name).write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    code = f"import sys; sys.modules |= dict.fromkeys({missing.split()!r}); from txstore.cli.main import app; app()"
    words = [filled.url if each is None else each for each in arguments]
    ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr
    assert f"pip install 'txstore[{extra}]'" in ran.stderr


@pytest.mark.long
def test_output_that_nobody_reads(filled: txstore.Repository) -> None:
    """`txstore ls --keys | head` ends without a traceback."""
    with subprocess.Popen(
        [sys.executable, "-m", "txstore", "ls", "--keys", filled.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


# -- log ---------------------------------------------------------------------------------------------------------------


def test_log(filled: txstore.Repository) -> None:
    with filled.begin() as transaction:
        transaction.delete("old/c/0")
        transaction["old/c/2"] = b"1"
    result = run("log", filled.url)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    commits = list(filled.log())
    assert lines[0] == ["version", "id", "time", "author", "keys", "size", "message"]
    assert [line[:2] for line in lines[2:]] == [[f"{commit.version}", commit.id[:12]] for commit in commits]
    assert "  +1 -1  " in result.stdout
    assert lines[3][-4:] == ["+4", f"{commits[1].statistics['bytes_set']}", "B", "fill"]
    assert lines[4][-6:] == ["(tag:", "v1)", "create", "[all]", "of", "it"]
    shown = run_json("log", filled.url)
    assert shown == [
        {**asdict(commit), "time": commit.time.isoformat(), "names": called}
        for commit, called in zip(commits, [["main"], [], ["tag: v1"]], strict=True)
    ]
    assert list(shown[0]) == [
        "id", "branch", "version", "seq", "parent", "time", "author", "message", "properties", "statistics",
        "merged", "names",
    ]  # fmt: skip
    assert run_json("log", filled.url, "--limit", 1) == shown[:1]


def test_times_are_local_and_name_their_zone(filled: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XST-5:30")
    time.tzset()
    try:
        local = filled.commit(0).time + timedelta(hours=5, minutes=30)
        assert f"  {local:%Y-%m-%d %H:%M} XST  " in run("log", filled.url).stdout
        assert f"{local:%Y-%m-%d %H:%M:%S} XST" in run("show", filled.url, "0").stdout
        assert run_json("show", filled.url, "0")["time"] == filled.commit(0).time.isoformat()  # as ever
    finally:
        monkeypatch.undo()
        time.tzset()


# -- 80 columns --------------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run a command on a terminal of 80 columns; return the lines, without colours."""

    def lines(*arguments: object) -> list[str]:
        environment = {"COLUMNS": "80", "LINES": "24", "FORCE_COLOR": "1", "TERM": "xterm"}
        done = CliRunner(env=environment).invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == 0, done.output
        return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in done.stdout.splitlines()]

    return lines


def test_what_is_shown_fits_80_columns(repo: txstore.Repository, terminal: Callable[..., list[str]]) -> None:
    long = "a message that is rather long and says in many words what this commit is about"
    with repo.transaction(long) as store:
        group = zarr.create_group(store, path="climate/reanalysis")
        shape = {"shape": (3650, 24, 721, 1440), "dtype": "float32"}
        group.create_array("total_precipitation", chunks=(1, 24, 721, 1440), **shape)
        group.create_array("sharded", chunks=(1, 24, 103, 144), shards=(5, 24, 721, 1440), **shape)
        store["climate/notes"] = bytes(12_345_678)
        store.constraints["a-name-of-some-length"] = OnlyGrows("climate/reanalysis/total_precipitation")
    repo.tags["v1"] = 0
    store = repo.transaction("staged by name: " + long, name="a-run-with-a-long-name-of-its-own")
    store["staged"] = bytes(1_000_000)
    for arguments in (["log"], ["ls"], ["du"], ["constraints"], ["show"], ["tx", "list"], ["optimize"], ["vacuum"]):
        shown = terminal(*arguments, repo.url)
        assert max(map(len, shown)) <= 80, "\n".join(shown)
    del store
    shown = terminal("log", repo.url)
    commit = repo.head()
    assert any(
        f"{commit.version}  {commit.id[:12]}  {commit.time.astimezone():%Y-%m-%d %H:%M %Z}  " in line for line in shown
    )
    begin = shown[0].index("message")
    assert long in " ".join(line[begin:].strip() for line in shown if line[:4].strip() in ("0", ""))


# -- options of every command ------------------------------------------------------------------------------------------


def test_options_of_what_is_read_and_written(filled: txstore.Repository, tmp_path: Path) -> None:
    for arguments in (
        ["import", "memory://x/a.zarr", filled.url, "--from-options"],
        ["export", filled.url, "memory://x/out", "--to-options"],
        ["publish", filled.url, "memory://x/out", "--to-options"],
        ["references", filled.url, "memory://x/out.json", "--tag", "v1", "--to-options"],
    ):
        result = run(*arguments, '["secret"]')
        assert result.exit_code == 2
        assert "takes a JSON object" in " ".join(result.stderr.split())
        assert "secret" not in result.stderr


# -- ls ----------------------------------------------------------------------------------------------------------------


def test_ls(filled: txstore.Repository) -> None:
    result = run("ls", filled.url)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["name", "shape", "chunks", "dtype", "stored", "size"]
    assert [line[:-2] for line in lines[2:]] == [
        ["/"],
        ["old", "6", "2", "uint8", "3"],
        ["scalar", "scalar", "scalar", "int32", "0"],
        ["storm/"],
        ["storm/position", "10×4", "5×4", "float64", "1"],
    ]


def test_ls_as_json(filled: txstore.Repository) -> None:
    shown = {node["name"]: node for node in run_json("ls", filled.url)}
    snapshot = filled.mapping()
    sizes = {key: len(value) for key, value in snapshot.items()}
    assert shown["storm/position"] == {
        "name": "storm/position", "kind": "array", "shape": [10, 4], "chunks": [5, 4], "shards": None,
        "dtype": "float64", "chunks_stored": 1,
        "bytes": sizes["storm/position/zarr.json"] + sizes["storm/position/c/0/0"],
    }  # fmt: skip
    of_arrays = dict.fromkeys(["shape", "chunks", "shards", "dtype", "chunks_stored"])
    assert shown[""] == {"name": "", "kind": "group", **of_arrays, "bytes": sum(sizes.values())}
    for prefix in ("storm", "storm/", "/storm"):
        assert [node["name"] for node in run_json("ls", filled.url, prefix)] == ["storm", "storm/position"]
    assert shown["storm"]["bytes"] == shown["storm/position"]["bytes"] + sizes["storm/zarr.json"]


def test_ls_of_shards_and_of_zarr_format_2(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        group = zarr.create_group(store, zarr_format=2)
        group.create_array("old", shape=(6,), chunks=(2,), dtype="u1")[2:] = 1
        group["old"].attrs["unit"] = "m"
        zarr.create_array(store, name="x", shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="i4")
    assert "8×8    2×2 in 4×4  int32" in run("ls", repo.url).stdout
    nodes = run_json("ls", repo.url)
    assert [(node["name"], node["kind"], node["chunks_stored"]) for node in nodes[:2]] == [
        ("", "group", None),
        ("old", "array", 2),
    ]
    assert (nodes[2]["chunks"], nodes[2]["shards"]) == ([2, 2], [4, 4])


@pytest.mark.parametrize("odd", [b"{", b'{"zarr_format": 3, "node_type": "array"}', b"[]", None])
def test_one_odd_document_hides_no_other_node(filled: txstore.Repository, odd: bytes | None) -> None:
    with filled.begin() as mapping:
        mapping["odd/zarr.json"] = odd or b"{" * 99
    path = Path(filled.url) / "commits" / "main" / f"{filled.head().version:010}"
    whole = path.read_bytes()
    if odd is None:  # damage
        path.write_bytes(whole.replace(b"{" * 99, b"[" * 99))
    result = run("ls", filled.url)
    assert result.exit_code == 1
    assert "storm/position" in result.stdout
    assert "can't be read" in result.stdout
    nodes = {node["name"]: node for node in json.loads(run("ls", filled.url, "--json").stdout)}
    assert nodes["storm/position"]["kind"] == "array"
    assert nodes["odd"]["kind"] == "unknown"
    assert nodes["odd"]["fault"]
    path.write_bytes(whole)


def test_ls_keys(filled: txstore.Repository) -> None:
    sizes = {key: len(value) for key, value in filled.mapping().items()}
    assert run_json("ls", filled.url, "--keys") == [{"key": key, "bytes": size} for key, size in sizes.items()]
    assert run_json("ls", filled.url, "storm/position/c/0/0", "--keys") == [
        {"key": "storm/position/c/0/0", "bytes": sizes["storm/position/c/0/0"]}
    ]
    assert run_json("ls", filled.url, "nothing", "--keys") == []
    lines = run("ls", filled.url, "--keys", "--at", "v1").stdout.splitlines()
    assert [line.split()[1] for line in lines] == list(filled.mapping(at=0))


@pytest.mark.parametrize("fill_value", ["1e400", "[]", str(10**30)])
def test_ls_of_what_zarr_can_not_read(repo: txstore.Repository, fill_value: str) -> None:
    """Whatever zarr raised came out as a traceback."""
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(4,), chunks=(2,), dtype="i8", fill_value=7)
        store["x/zarr.json"] = store["x/zarr.json"].replace(b'"fill_value": 7', b'"fill_value": ' + fill_value.encode())
    result = run("ls", repo.url, "x")
    assert result.exit_code == 2
    assert "--keys lists raw keys" in result.stderr
    assert "x/zarr.json" in run("ls", repo.url, "--keys").stdout


def test_ls_of_what_is_not_there(filled: txstore.Repository) -> None:
    assert_refused(run("ls", filled.url, "nowhere"), "no array or group exists at 'nowhere'")
    assert_refused(run("ls", filled.url, "a//b"), "empty segment")
    assert_refused(run("ls", filled.url, "--at", "2"), "versions 0 to 1")
    assert_refused(run("ls", filled.url, "--at", "v2", "--keys"), "'v2'")


# -- show --------------------------------------------------------------------------------------------------------------


def test_show(filled: txstore.Repository) -> None:
    commit = filled.commit(0)
    for given in (commit.id, commit.id[:10].upper()):
        told = run_json("show", filled.url, given)
        assert [node["path"] for node in told.pop("changes")] == [node.path for node in filled.diff(0)]
        assert told == {**asdict(commit), "time": commit.time.isoformat()}
    text = run("show", filled.url, "v1").stdout.partition("\n\n")[0]
    shown = dict(map(str.rstrip, line.split(maxsplit=1)) for line in text.splitlines())
    assert (shown["id"], shown["parent"], shown["message"]) == (commit.id, "-", r"create [all] of it\nat length")
    assert (shown["properties.run"], shown["properties.by"]) == ("3", '{"whom": "me"}')
    assert shown["statistics.keys_set"] == f"{commit.statistics['keys_set']}"


def test_show_without_a_commit_shows_the_newest(filled: txstore.Repository, open_repo: Any) -> None:
    assert run_json("show", filled.url)["version"] == 1
    empty = open_repo("empty.tx")
    with empty.transaction(name="open") as store:
        store["staged"] = b"1"
    assert_refused(run("show", empty.url), "nothing was committed yet")


def test_digits_are_a_version_unless_they_are_many(filled: txstore.Repository) -> None:
    filled.tags["123"] = 1  # can't be reached by this name here: the documented rule
    filled.tags["1234567890"] = 1
    assert_refused(run("show", filled.url, "123"), "version 123")
    assert run_json("show", filled.url, "1234567890")["version"] == 1


# -- constraints -------------------------------------------------------------------------------------------------------


def test_constraints(filled: txstore.Repository) -> None:
    filled.constraints["grown"] = OnlyGrows("storm/position")
    assert run_json("constraints", filled.url) == {"grown": {"kind": "only grows", "path": "storm/position"}}
    assert run_json("constraints", filled.url, "--at", "v1") == {}
    zarr.create_array(store := filled.transaction(), name="time", data=np.arange(4))
    store.commit()
    filled.constraints["upwards"] = Sorted("time")
    lines = run("constraints", filled.url).stdout.splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["grown", "only", "grows", "path:", '"storm/position"'],
        ["upwards", "sorted", "path:", '"time";', "descending:", "false;", "strict:", "true"],
    ]


# -- verify ------------------------------------------------------------------------------------------------------------


def test_verify(filled: txstore.Repository) -> None:
    result = run("verify", filled.url)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.startswith("0 faults in 2 commits, ")
    report = filled.verify()
    assert run_json("verify", filled.url) == {"ok": True, **asdict(report)}


# -- demo --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Puts in the demo's place what only notes how it was called, and reports so many torn reads as `torn` says."""
    called: dict[str, Any] = {"torn": 0}

    def play(seconds: float, directory: Path | None, picture: Path | None, console: Any, keep: Path) -> dict[str, Any]:
        called.update(seconds=seconds, directory=directory, picture=picture, keep=keep)
        console.print("played")
        return {"ok": not called["torn"], "problems": ["torn"] * called["torn"], "versions": {}, "picture": None}

    monkeypatch.setattr(txstore.cli.demo, "run", play)
    return called


def test_demo(played: dict[str, Any], tmp_path: Path) -> None:
    result = run("demo")
    assert (result.exit_code, result.stdout) == (0, "played\n")
    assert played == {
        "torn": 0, "seconds": 4.0, "directory": None, "picture": Path("demo.png"), "keep": Path("demo.tx"),
    }  # fmt: skip
    run("demo", "--seconds", 2, "--directory", tmp_path, "--picture", tmp_path / "x.svg", "--keep", tmp_path / "x.tx")
    assert played == {
        "torn": 0, "seconds": 2.0, "directory": tmp_path, "picture": tmp_path / "x.svg", "keep": tmp_path / "x.tx",
    }  # fmt: skip
    played["torn"] = 1
    result = run("demo", "--no-picture", "--json")
    assert (result.exit_code, json.loads(result.stdout)["ok"], result.stderr) == (1, False, "played\n")
    assert played["picture"] is None
