"""Files that other programs leave in a repository: passed over, told of by `verify`, never deleted, never an error."""

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

import txstore
from txstore.format import names

STRAYS = (
    ".DS_Store", "._0000000001", ".nfs00000000a1b2c3", "0000000001~", ".0000000001.swp", "#main#", "Thumbs.db",
    "notes.txt", "0000000001.orphan-00", "0000000001.bak", "3F" * 16, "ab cd", "x" * 200, "0" * 31, "named-",
    "named-a~", "copy.new",
    "00000000000000001.new", "0" * 32 + ".open~", "0" * 32 + ".00", "\N{SNOWMAN}",
)  # fmt: skip
DIRECTORIES = ("", *names.DIRECTORIES, "packs/3f", "quarantine")


def use(repo: txstore.Repository) -> None:
    """Do what there is to do."""
    for number in range(3):
        with repo.begin() as transaction:
            transaction[f"a/{number}"] = bytes(2000)
    repo.tags[f"v{repo.head().version}"] = repo.head()
    named = repo.transaction(name="run")
    named["named"] = b"1"
    assert [found.name for found in repo.transactions()] == ["run"]
    named.commit()
    assert len(repo.tags) == len(list(repo.tags))
    repo.usage()
    repo.optimize()
    repo.vacuum(keep=1, dry_run=True)
    repo.vacuum(keep=1)
    list(repo.log())
    assert repo.snapshot()["named"] == b"1"


def make_strays(write: Callable[[str], None], present: Callable[[str], bool]) -> list[str]:
    """Put each into each directory, unless it could be one of the repository there."""
    made = []
    for directory in DIRECTORIES:
        for name in STRAYS:
            path = posixpath.join(directory, name)
            if not names.belongs(path) and not present(path):
                write(path)
                made.append(path)
    return made


def test_files(open_repo, tmp_path):
    repo = open_repo()
    use(repo)
    root = Path(repo.url)
    for directory in ("packs/3f", "quarantine"):
        (root / directory).mkdir(exist_ok=True)
    made = make_strays(lambda path: (root / path).write_bytes(b"stray"), lambda path: (root / path).exists())
    (root / "packs" / "more").mkdir()
    made.append("packs/more")
    use(repo)
    again = txstore.Repository(root)
    use(again)
    report = again.verify()
    assert report.faults == []
    assert report.ok
    assert sorted(report.strays) == sorted(made)
    repaired = again.verify(repair=True)
    assert (repaired.faults, repaired.repairs) == ([], [])
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / ".DS_Store").write_bytes(b"")
    again.backup(tmp_path / "copy")
    copy = txstore.Repository(tmp_path / "copy")
    assert copy.verify().strays == [".DS_Store"]
    assert copy.snapshot()["named"] == b"1"
    (tmp_path / "copy/tags/.DS_Store").write_bytes(b"")
    use(again)
    again.backup(tmp_path / "copy")
    for path in made:
        if path != "packs/more":
            assert (root / path).read_bytes() == b"stray"


def test_a_directory_with_nothing_but_litter_becomes_a_repository(tmp_path):
    (tmp_path / "data.tx").mkdir()
    (tmp_path / "data.tx" / ".DS_Store").write_bytes(b"")
    with txstore.Repository(tmp_path / "data.tx").begin() as transaction:
        transaction["a"] = b"1"
    (tmp_path / "other.tx").mkdir()
    (tmp_path / "other.tx" / "thesis.tex").write_bytes(b"")
    with pytest.raises(txstore.RepositoryNotFoundError, match=r"thesis\.tex"):
        txstore.Repository(tmp_path / "other.tx")


@pytest.fixture
def objects(request) -> Iterator[txstore.Repository]:
    url = f"memory://{request.node.name}/data.tx"
    yield txstore.Repository(url, single_writer=True)
    fsspec.filesystem("memory").rm(f"/{request.node.name}", recursive=True)


def test_objects(objects, tmp_path):
    repo, system = objects, fsspec.filesystem("memory")
    use(repo)
    root = repo.url.removeprefix("memory:/")
    made = make_strays(
        lambda path: system.pipe(f"{root}/{path}", b"stray"), lambda path: system.exists(f"{root}/{path}")
    )
    use(repo)
    again = txstore.Repository(repo.url, single_writer=True)
    use(again)
    report = again.verify()
    assert report.faults == []
    assert sorted(report.strays) == sorted(made)
    assert again.verify(repair=True).repairs == []
    again.backup(tmp_path / "copy")
    assert txstore.Repository(tmp_path / "copy").verify().strays == []
    assert all(system.cat(f"{root}/{path}") == b"stray" for path in made)
