"""Plain copies: what they hold, what is done when somebody has touched them, and what readers see meanwhile."""

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import txstore
from tests.interchange.copies import check_copy, chunks_of, tree_of
from tests.maintenance.erased_rows import leaks
from txstore.interchange import publish as publishing
from txstore.interchange.destinations import LocalDestination
from txstore.interchange.publish import STATE

ROOT = Path(__file__).parents[2]
#: How many reads beside a writer.
READS = int(os.environ.get("TXSTORE_PUBLISHED_READS", "40"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy.zarr"


def fill(repo: txstore.Repository) -> None:
    with repo.transaction("fill") as store:
        group = zarr.open_group(store)
        group.create_array("x", data=np.arange(10), chunks=(4,))
        group.create_group("h", attributes={"a": 1.5}).create_array("y", data=np.ones((3, 3)), chunks=(2, 2))


def append(repo: txstore.Repository, length: int = 5) -> None:
    with repo.transaction("append") as store:
        zarr.open_array(store, path="x").append(np.arange(length))


@pytest.mark.parametrize("freezes", [0, 1, 2])
@pytest.mark.parametrize("branch", ["main", "dev"])
def test_what_was_erased_without_a_commit_on_the_branch(repo, copy, branch, freezes):
    """Rows whose label is another one now: the key is as old as before, and its value is another one."""
    values = [2**60 + 1, 2**60 + 2, 2**60 + 3, 2**60 + 4]
    with repo.transaction() as store:
        zarr.create_group(store)
        for name, data in (("x", [10, 20, 30, 40]), ("v", values)):
            zarr.create_array(store, name=name, data=np.array(data), compressors=None, dimension_names=["x"])
    repo.branches["dev"] = repo.head()
    with repo.transaction(branch=branch) as store:
        zarr.open_array(store, path="x")[1] = 21
    del store
    gc.collect()
    if freezes == 1:  # the copy is of the commit that is the newest ever since
        repo.freeze("published", branch=branch)
    repo.publish(copy, branch=branch)
    if freezes == 2:
        repo.freeze("published", branch=branch)
    repo.erase("v", {"x": 20})
    gc.collect()
    repo.publish(copy, branch=branch)
    assert zarr.open_array(copy, path="v", mode="r")[:].tolist() == [values[0], 0, *values[2:]]
    assert leaks(copy, np.int64(values[1]).tobytes()) == []
    assert repo.publish(copy, branch=branch).written == 0


def test_a_copy_is_what_zarr_would_have_written(repo: txstore.Repository, copy: Path) -> None:
    fill(repo)
    done = repo.publish(copy)
    assert (done.commit, done.deleted, done.written) == (repo.head(), 0, len(tree_of(copy)))
    check_copy(copy, repo)
    group = zarr.open_consolidated(copy)
    assert group["x"][:].tolist() == list(range(10))
    assert dict(group["h"].members())["y"][:].sum() == 9
    assert group["h"].attrs["a"] == 1.5
    ours = json.loads((copy / "zarr.json").read_text())
    zarr.consolidate_metadata(copy)
    assert json.loads((copy / "zarr.json").read_text()) == ours


def test_only_what_has_moved_is_written(repo: txstore.Repository, copy: Path) -> None:
    fill(repo)
    repo.publish(copy)
    assert repo.publish(copy).written == 0
    append(repo)
    repo.optimize()
    times = {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file()}
    done = repo.publish(copy)
    check_copy(copy, repo)
    moved = {str(path.relative_to(copy)) for path, then in times.items() if path.stat().st_mtime_ns != then}
    assert moved == {"x/c/2", "x/zarr.json", "zarr.json", STATE}
    assert (done.written, done.deleted) == (4, 0)  # and x/c/3, which is new


def test_what_a_directory_cannot_hold_is_said(repo: txstore.Repository, copy: Path) -> None:
    with repo.begin() as transaction:
        transaction["a"], transaction["a/b"] = b"1", b"2"
    with pytest.raises(txstore.PublishError, match="both keys"):
        repo.publish(copy)
    with repo.begin() as transaction:
        del transaction["a"], transaction["a/b"]
        transaction["c\0d"] = b"1"
    with pytest.raises(txstore.PublishError, match="name of a file"):
        repo.publish(copy)


@pytest.mark.parametrize("upkeep", ["vacuum", "tagged", "optimize"])
def test_after_the_published_commit_is_gone(repo: txstore.Repository, copy: Path, upkeep: str) -> None:
    fill(repo)
    repo.publish(copy)
    if upkeep == "tagged":
        repo.tags["published"] = repo.head()
    with repo.transaction() as store:
        del zarr.open_group(store)["h"]
    append(repo)
    if upkeep != "optimize":
        repo.vacuum(keep=1)
    repo.optimize()  # forgets the tombstones below the oldest kept version
    append(repo)
    repo.publish(copy)
    check_copy(copy, repo)


def test_another_history_is_told_from_the_same_versions(open_repo, copy, tmp_path):
    repo = open_repo()
    fill(repo)
    repo.backup(tmp_path / "older.tx")
    append(repo)
    with repo.transaction() as store:
        zarr.create_array(store, name="z", data=np.ones(3))
    repo.publish(copy)
    restored = open_repo("older.tx")
    append(restored, 6)
    append(restored, 7)
    append(restored, 8)
    restored.publish(copy)
    check_copy(copy, restored)


def test_a_copy_that_others_have_touched(repo: txstore.Repository, copy: Path) -> None:
    fill(repo)
    repo.publish(copy)
    for path in copy.rglob("*"):
        if path.is_file() and path.name != STATE:
            path.unlink()  # `rm -r copy/*` leaves the hidden file
    append(repo)
    repo.publish(copy)
    check_copy(copy, repo)
    (copy / "x/c/0").unlink()
    (copy / "x/c/1").write_bytes(b"other")
    (copy / "more").write_bytes(b"other")
    done = repo.publish(copy, full=True)
    check_copy(copy, repo)
    assert (done.written, done.deleted) == (2, 1)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"version": 7}', b"null", b'{"version": 1, "attempts": 3}', b"[" * 100_000]
)
def test_a_marker_that_says_nothing_makes_no_place_ours(repo: txstore.Repository, copy: Path, content: bytes) -> None:
    fill(repo)
    copy.mkdir()
    (copy / STATE).write_bytes(content)
    (copy / "more").write_bytes(b"dear")
    with pytest.raises(txstore.PublishError, match="was not written there"):
        repo.publish(copy, full=True)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == {STATE: content, "more": b"dear"}


def test_what_is_not_ours_is_not_touched(open_repo: Callable[..., txstore.Repository], tmp_path: Path) -> None:
    repo, other = open_repo(), open_repo("other.tx")
    fill(repo)
    fill(other)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_bytes(b"mine")
    other.publish(tmp_path / "copy")
    for place, why in (
        (tmp_path / "full", "something else"),
        (tmp_path / "copy", "of repository"),
        (tmp_path / "data.tx", "in the repository"),
        (tmp_path / "data.tx" / "copy", "in the repository"),
        (f"file://{tmp_path}/data.tx/copy", "in the repository"),
        (tmp_path, "something else"),
    ):
        with pytest.raises(txstore.PublishError, match=why):
            repo.publish(place)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]
    check_copy(tmp_path / "copy", other)
    with pytest.raises(ValueError, match="means nothing"):
        repo.publish(tmp_path / "new", storage_options={"anon": True})
    with pytest.raises(txstore.RepositoryNotFoundError):
        open_repo("none.tx").publish(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_two_publishers_do_not_meet(repo: txstore.Repository, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(repo)
    begun, go_on = threading.Event(), threading.Event()
    real = publishing.documents_of

    def slow(snapshot: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return real(snapshot)

    monkeypatch.setattr(publishing, "documents_of", slow)
    thread = threading.Thread(target=repo.publish, args=(copy,))
    thread.start()
    assert begun.wait(30)
    with pytest.raises(txstore.PublishError, match="another process"):
        repo.publish(copy)
    go_on.set()
    thread.join(30)
    check_copy(copy, repo)


def test_damage_on_the_way_is_found(repo: txstore.Repository, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(repo)
    repo.publish(copy)
    append(repo)
    written = LocalDestination.write

    def damaging(self: Any, key: str, content: Any) -> None:
        written(self, key, bytes(len(content)) if key == "x/c/3" else content)

    monkeypatch.setattr(LocalDestination, "write", damaging)
    before = (copy / "zarr.json").read_bytes()
    with pytest.raises(txstore.PublishError, match="x/c/3"):
        repo.publish(copy)
    assert (copy / "zarr.json").read_bytes() == before
    monkeypatch.undo()
    repo.publish(copy)
    check_copy(copy, repo)


def test_an_object_store(repo: txstore.Repository) -> None:
    url = f"memory://{uuid.uuid4().hex}/copy.zarr"
    fill(repo)
    repo.publish(url)
    append(repo)
    with repo.transaction() as store:
        del zarr.open_group(store)["h"]
    repo.publish(url)
    fs, root = fsspec.url_to_fs(url)
    found = {path.removeprefix(root + "/") for path in fs.find(root)}
    assert found == {"zarr.json", STATE, *chunks_of(repo)}
    assert zarr.open_group(url, mode="r", use_consolidated=True)["x"].shape == (15,)


def test_blocks_that_came_along_are_made_anew(repo: txstore.Repository, copy: Path) -> None:
    stale = {"kind": "inline", "must_understand": False, "metadata": {"old": {}}}
    document = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": stale}
    with repo.begin() as transaction:
        transaction["zarr.json"] = transaction["h/zarr.json"] = json.dumps(document).encode()
        transaction[".zmetadata"] = transaction["h/.zmetadata"] = b"{}"
    repo.publish(copy)
    assert sorted(tree_of(copy)) == ["h/zarr.json", "zarr.json"]
    assert "consolidated_metadata" not in json.loads((copy / "h/zarr.json").read_text())
    root = json.loads((copy / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    assert list(root) == ["h"]
    assert root["h"]["consolidated_metadata"]["metadata"] == {}


# --- following, and readers meanwhile
@contextmanager
def publishing_process(repo: txstore.Repository, copy: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "txstore", "publish", repo.url, str(copy), "--follow", "--json"]
    told = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=told, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


#: Opens the copy anew for each read, and prints what it has found torn.
READER = """
import sys, warnings, zarr, numpy as np
warnings.simplefilter("ignore")
path, reads = sys.argv[1], int(sys.argv[2])
try:
    import txstore
except ImportError:
    pass
else:
    raise SystemExit("txstore is here")
torn, lengths, done = 0, set(), 0
print("ready", flush=True)
while done < reads or len(lengths) < 3:
    group = zarr.open_group(path, mode="r", use_consolidated=True)
    x, y = group["x"][:], group["y"][:]
    torn += not (np.array_equal(x, np.arange(1, len(x) + 1)) and np.array_equal(y, -x))
    lengths.add(len(x))
    done += 1
print(done, torn, len(lengths))
"""


@pytest.mark.long
def test_readers_without_txstore_see_no_torn_append(repo, copy, run_plain):
    def extend(store: txstore.TxStore, length: int) -> None:
        group = zarr.open_group(store)
        end = group["x"].shape[0] + 1
        group["x"].append(np.arange(end, end + length))
        group["y"].append(-np.arange(end, end + length))

    with repo.transaction() as store:
        group = zarr.open_group(store)
        for name in "xy":
            group.create_array(name, shape=(0,), chunks=(50,), dtype="i8", fill_value=-7)
        extend(store, 60)
    repo.publish(copy)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            repo.run(lambda store: extend(store, 35))

    writer = threading.Thread(target=write)
    with publishing_process(repo, copy):
        writer.start()
        try:
            told = run_plain(READER, copy, READS, timeout=120 + READS).split()
        finally:
            stop.set()
            writer.join(30)
    assert told[0] == "ready"
    assert told[2] == "0", f"{told[2]} of {told[1]} reads were torn"
    repo.publish(copy)
    check_copy(copy, repo)


def test_following(repo: txstore.Repository, copy: Path) -> None:
    seen = []

    def published(done: publishing.Published) -> None:
        seen.append(done.commit.version)
        if len(seen) < 4:
            append(repo)

    fill(repo)
    last = repo.publish(copy, follow=True, timeout=0, published=published)
    assert seen == [0, 1, 2, 3]
    assert last.commit == repo.head()
    check_copy(copy, repo)
    with publishing_process(repo, copy) as process:
        assert json.loads(process.stdout.readline())["written"] == 0
        append(repo)
        assert json.loads(process.stdout.readline())["commit"]["version"] == 4
        check_copy(copy, repo)


@pytest.mark.long
def test_killed_at_every_step(tmp_path: Path) -> None:
    told = {**os.environ, "PYTHONPATH": str(ROOT)}
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path  # there is no power to be lost
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        command = [sys.executable, "-m", "tests.interchange.kill_publisher", directory]
        done = subprocess.run(command, env=told, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 150


def test_a_key_in_the_directory_for_what_is_being_written_is_refused(repo: txstore.Repository, tmp_path: Path) -> None:
    with repo.transaction() as store:
        zarr.create_array(store, name=".txstore-publishing/x", data=np.arange(3))
    with pytest.raises(txstore.PublishError, match=r"put together in \.txstore-publishing/"):
        repo.publish(tmp_path / "out")
    with pytest.raises(txstore.ExportError, match=r"put together in \.txstore-publishing/"):
        repo.export(tmp_path / "exported")
