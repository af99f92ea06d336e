"""All commands at once: one name and metavar for one thing, positions, exit statuses, and what the shell completes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
import zarr

import txstore
from tests.tools.command_line import assert_refused, run, run_json
from tests.tools.hostile import declare_unchecked
from txstore.cli.main import app
from txstore.views import Reduce

#: What is not as in other commands, and why.
EXCEPTIONS = {
    ("demo", "--keep"),  # of a repository, not of commits
    ("rechunk", "--chunks"),  # of one array, for each axis
}

#: Those that make a commit of what they are told: they take a message, and the branch to commit to.
COMMITTING = {"cherry-pick", "commit-directory", "cp", "import", "merge", "mv", "rechunk", "restore", "revert"}
#: Those that look at one commit, and at the newest by default.
LOOKING = {"blame", "checkout", "constraints", "export", "ls"}
#: Those that ask before they do what can't be undone.
ASKING = {"erase", "tx rollback"}


def commands(group: Any = None, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} ")
        else:
            yield f"{above}{name}", command


COMMANDS = dict(commands())
#: The arguments of every command, in their order: each thing has one word, which `VALUES` knows.
ARGUMENTS = {
    name: [each.metavar for each in command.params if each.param_type_name == "argument"]
    for name, command in COMMANDS.items()
}


def options(name: str) -> dict[str, Any]:
    return {each.opts[0]: each for each in COMMANDS[name].params if each.param_type_name == "option"}


# -- names and metavars ------------------------------------------------------------------------------------------------


def test_one_word_for_one_thing() -> None:
    found = {
        (option, *parameter.opts[1:], None if parameter.is_flag else parameter.metavar)
        for name in COMMANDS
        for option, parameter in options(name).items()
        if (name, option) not in EXCEPTIONS
    }
    assert len(found) == len({option for option, *_ in found}), sorted(found, key=str)
    assert {"-m", "-n", "-y"} == {other for _, *others, _ in found for other in others}


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_where_they_belong(name: str) -> None:
    there = {each for parameter in options(name).values() for each in parameter.opts}
    assert "--json" in there
    assert name in ("demo", "protect") or "--storage-options" in there
    if name in COMMITTING:
        assert {"--message", "-m", "--branch"} <= there
    if name in LOOKING:
        assert {"--at", "--branch"} <= there
    if "COMMIT" in ARGUMENTS[name] or "--at" in there:  # versions are those of a branch
        assert "--branch" in there
    assert (name in ASKING) == ("--yes" in there)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_everything_is(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    for parameter in command.params:
        assert parameter.help, parameter.name
        assert "[default" not in parameter.help  # rich would take it for markup, and show nothing of it


# -- positions ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    for number in range(4):
        with repo.transaction(f"number {number}") as store:
            zarr.create_array(store, name=f"a{number}", shape=(1,), dtype="i4", dimension_names=["x"])
    repo.tags["v1"] = 1
    repo.branches["dev"] = 2
    return repo


@pytest.mark.parametrize(
    ("given", "version"),
    [("-1", 3), ("-2", 2), ("0", 0), ("HEAD", 3), ("HEAD~1", 2), ("main~2", 1), ("v1~1", 0), ("v1~", 0), ("-1~1", 2),
     ("3~2", 1), ("dev~1", 1), ("main@2", 2), ("dev", 2)],
)  # fmt: skip
def test_positions(given: str, version: int, filled: txstore.Repository) -> None:
    assert run_json("show", filled.url, given)["version"] == version
    assert run_json("ls", filled.url, "--at", given, "--keys") == run_json(
        "ls", filled.url, f"--at={version}", "--keys"
    )


def test_negative_numbers_are_commits(filled: txstore.Repository) -> None:
    assert run_json("diff", filled.url, "-2", "-1") == run_json("diff", filled.url, "2", "3")
    assert run_json("diff", filled.url, "-1", "--branch", "dev") == run_json("diff", filled.url, "2")
    assert run_json("tag", "create", filled.url, "v2", "-2")["commit"]["version"] == 2
    assert run_json("revert", filled.url, "-1")["commit"]["message"] == "revert of main@3: number 3"
    assert run_json("mv", filled.url, "a0", "b", "-m", "-5")["message"] == "-5"


def test_what_is_no_number_is_an_option(filled: txstore.Repository) -> None:
    for wrong in ("-x", "-1x", "--1", "-m"):
        result = run("diff", filled.url, wrong)
        assert result.exit_code == 2
        assert "No such option" in result.stderr
    assert run("log", filled.url, "--limit", "-1").exit_code == 2


# -- statuses ----------------------------------------------------------------------------------------------------------

#: How each command is called, but for the repository: as its arguments stand in the table.
VALUES = {
    "DESTINATION": "copy.json", "NODE": "a0", "BRANCH": "dev", "COMMIT": "1", "NEW": "b", "NAME": "x", "TAG": "v1",
    "SOURCE": "old.zarr", "DIRECTORY": "work.zarr",
}  # fmt: skip
NEEDED = {"references": ["--tag", "v1"], "restore": ["--at", "1"], "erase": ["--yes"], "tx rollback": ["--yes"]}


def call(name: str, path: object) -> list[object]:
    return [
        *name.split(),
        *(path if each == "PATH" else VALUES[each] for each in ARGUMENTS[name]),
        *NEEDED.get(name, ()),
    ]


OF_A_REPOSITORY = sorted(set(COMMANDS) - {"demo", "import"})  # which makes it


@pytest.mark.parametrize("name", OF_A_REPOSITORY)
def test_2_where_there_is_no_repository(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--json"]):
        assert_refused(run(*call(name, "none"), *more), "there is no TxStore repository here")
    assert list(tmp_path.iterdir()) == []
    zarr.open_group("plain.zarr", mode="w")
    assert_refused(run(*call(name, "plain.zarr")), "plain Zarr")


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"demo", "protect"}))
def test_1_where_there_is_damage_and_2_where_it_is_newer(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    zarr.create_array("old.zarr", shape=(1,), dtype="i4")
    with txstore.Repository("data.tx").transaction("first") as store:
        zarr.create_array(store, name="a0", shape=(1,), dtype="i4", dimension_names=["x"])
    good = Path("data.tx/format.json").read_bytes()
    Path("data.tx/format.json").write_text('{"txstore": 7}')
    assert_refused(run(*call(name, "data.tx")), "upgrade txstore")
    Path("data.tx/format.json").write_bytes(good.replace(b'"', b"'", 1))
    result = run(*call(name, "data.tx"))
    assert result.exit_code == 1, result.output
    assert "format.json" in result.output


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"demo", "protect"}))
def test_storage_options_reach_the_file_system(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it refuses one of them; what is no JSON may hold a secret, and is not shown."""
    monkeypatch.chdir(tmp_path)
    zarr.create_group("old.zarr")
    Path("options.json").write_text('{"txstore_engine": "nonsense"}')
    arguments = call(name, f"memory://{tmp_path}/data.tx")
    for options in ('{"txstore_engine": "nonsense"}', "@options.json"):
        result = run(*arguments, "--storage-options", options)
        assert result.exit_code in (1, 2)
        assert "txstore_engine is 'nonsense': choose" in result.stderr
    for wrong in ("secret", "[1]", '{"secret": '):
        result = run(*arguments, "--storage-options", wrong)
        assert result.exit_code == 2
        assert "takes a JSON object" in " ".join(result.stderr.split())
        assert "secret" not in result.stderr


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_2_where_it_is_used_wrongly(name: str, filled: txstore.Repository) -> None:
    wrong: list[list[object]] = [[*call(name, filled.url), "--no-such-option"]]
    if name != "demo":
        wrong += [name.split(), [*call(name, filled.url), "--storage-options", "{"]]
    if "COMMIT" not in ARGUMENTS[name]:
        wrong += [[*call(name, filled.url), "and", "more"]] if "NODE" not in ARGUMENTS[name] or name == "mv" else []
    if name in ASKING:  # it can't ask there
        wrong += [[each for each in call(name, filled.url) if each != "--yes"] + ["--json"]]
    if name in ("import", "views run"):
        wrong = [each for each in wrong if "and" not in each]  # these are sources, or views
    for arguments in wrong:
        result = run(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert result.stdout == ""
        assert result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["merge", None, "dev", "--append", "sideways"],
        ["merge", None, "dev", "--resolve", "a=yours"],
        ["import", "x", None, "--format", "csv"],
        ["import", "x", None, "--chunks", "many"],
        ["vacuum", None, "--older-than", "yesterday"],
        ["vacuum", None, "--keep", "0"],
        ["log", None, "--limit", "0"],
        ["demo", "--seconds", "0"],
    ],
)
def test_2_where_an_option_has_no_such_value(arguments: list[str | None], filled: txstore.Repository) -> None:
    result = run(*(filled.url if each is None else each for each in arguments))
    assert result.exit_code == 2, result.output


@pytest.mark.parametrize("name", sorted(name for name in COMMANDS if "COMMIT" in ARGUMENTS[name] or name in LOOKING))
def test_2_where_there_is_no_such_commit(name: str, filled: txstore.Repository, tmp_path: Path) -> None:
    arguments = ["none" if each == "1" else each for each in call(name, filled.url)]
    arguments = [tmp_path / "copy" if each == "copy.json" else each for each in arguments]
    assert_refused(run(*arguments, *(["--at", "none"] if name in LOOKING else [])), "'none'")


# -- what the shell completes ------------------------------------------------------------------------------------------


def completed(*words: str) -> list[str]:
    environment = {
        **os.environ, "_TXSTORE_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["txstore", *words]),
        "COMP_CWORD": f"{len(words)}",
    }  # fmt: skip
    ran = subprocess.run([sys.executable, "-m", "txstore"], capture_output=True, text=True, env=environment, check=True)
    assert ran.stderr == ""
    return ran.stdout.split()


def test_names_are_completed(filled: txstore.Repository) -> None:
    url = filled.url
    with filled.transaction(name="job") as store:
        store["c"] = b"1"
    assert completed("lo") == ["log"]
    assert completed("show", url, "") == ["main", "dev", "v1", "HEAD"]
    assert completed("ls", url, "--at", "v") == ["v1"]
    assert completed("log", url, "--branch", "d") == ["dev"]
    assert completed("merge", url, "") == ["main", "dev"]
    assert completed("tag", "delete", url, "") == ["v1"]
    assert completed("tx", "show", url, "") == ["job"]
    assert completed("diff", url, "-2", "m") == ["main"]
    filled.views["sum"] = Reduce("a0", "x", "max", "sum")
    assert completed("views", "run", url, "") == ["sum"]
    assert completed("views", "drop", "--branch", "dev", url, "") == []
    with filled.transaction(name="job") as store:
        store.rollback()


BASH = """
eval "$(_TXSTORE_COMPLETE=source_bash {txstore})"
COMP_WORDS=({txstore} views run {url} ''); COMP_CWORD=4
_txstore_completion {txstore}
eval "echo ${{COMPREPLY[*]}}"
"""


def test_a_name_of_a_strangers_header_never_comes_to_a_command_line(filled: txstore.Repository, tmp_path: Path) -> None:
    filled.views["sum"] = Reduce("a0", "x", "max", "sum")
    for number, name in enumerate(("", "-x", "*", "'", "a\nb", "$(touch touched)", "sum;touch${IFS}touched")):
        url = tmp_path / f"{number}.tx"
        shutil.copytree(filled.url, url)
        declare_unchecked(url, lambda views, name=name: {name: views["sum"]})
        for use in (txstore.Repository.head, txstore.Repository.log, txstore.Repository.snapshot):
            with pytest.raises(txstore.CorruptionError, match="name that none can have"):
                use(txstore.Repository(url))
    script = BASH.format(txstore=Path(sys.executable).with_name("txstore"), url=url)
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ran.stdout == "\n"
    assert not (tmp_path / "touched").exists()


def test_whatever_is_wrong_nothing_is_completed(filled: txstore.Repository, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in ("none", tmp_path / "file", "memory://none", "s3://none/none"):
        assert completed("show", str(path), "") == []
    format_file = Path(filled.url) / "format.json"
    good = format_file.read_bytes()
    format_file.write_text("{}")
    assert completed("show", filled.url, "") == []
    format_file.write_bytes(good)  # the repository is verified when the test ends
