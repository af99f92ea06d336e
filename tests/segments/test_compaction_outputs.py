"""Runs that a thread merges into a pack of its own, and a later commit installs: on a disk, and on an object store."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests import aside
from tests.aside import fill, installed, some, waiting
from tests.system.bad_input.disk import ROOT, in_child, run_python
from tests.transactions.faults import watch
from tests.waiting import TIMEOUT, wait_for_background_cleanup, wait_until
from txstore.commit_queue import group_commits
from txstore.commit_queue.group_commits import GroupCommits, members, proposal_of
from txstore.errors import CommitUnknownError
from txstore.format import names, packfile
from txstore.history.object_versions import ExclusiveCreate
from txstore.history.open_transactions import recorded
from txstore.history.publisher import LostPlaceError, Publisher
from txstore.history.versions import RenameUnderLock
from txstore.segments import compaction, compaction_outputs
from txstore.segments.compaction_outputs import INSTALLED_FOR, CompactionOutput, CompactionOutputs
from txstore.storage.interface import paths_in

Open = Callable[[], txstore.Repository]


@pytest.fixture(params=["disk", "objects"])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Open one repository again and again, each time as another process would; it is verified in the end."""
    url = str(tmp_path / "data.tx") if request.param == "disk" else f"memory://{uuid.uuid4().hex}"
    yield lambda: txstore.Repository(url)
    assert txstore.Repository(url).verify().faults == []


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Open]:
    yield lambda: txstore.Repository(tmp_path / "data.tx")
    assert txstore.Repository(tmp_path / "data.tx").verify().faults == []


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    aside.inline(monkeypatch)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    aside.small(monkeypatch)


def put(repo: txstore.Repository, key: str = "small", value: bytes = b"1", branch: str = "main") -> None:
    with repo.begin(branch=branch) as mapping:
        mapping[key] = value


def content(repo: txstore.Repository, branch: str = "main") -> dict[str, bytes]:
    return {key: bytes(value) for key, value in repo.mapping(branch=branch).items()}


def packs(repo: txstore.Repository) -> list[str]:
    return sorted(
        path for folder in paths_in(repo.engine.storage, names.PACKS) for path in paths_in(repo.engine.storage, folder)
    )


def staged(repo: txstore.Repository) -> list[str]:
    wait_for_background_cleanup()
    return repo.engine.storage.list(names.STAGING)


def with_one(repo: txstore.Repository) -> dict[str, bytes]:
    """Fill a repository until a pack waits for the next commit."""
    model = fill(repo, 0) | fill(repo, 1)
    some(repo)
    return model


def halted(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let threads wait before they write what they have merged; return what says that one waits, and what ends it."""
    began, go_on, write = threading.Event(), threading.Event(), CompactionOutput.__init__

    def slowly(self: CompactionOutput, *arguments: Any) -> None:
        began.set()
        assert go_on.wait(TIMEOUT)
        write(self, *arguments)

    monkeypatch.setattr(CompactionOutput, "__init__", slowly)
    return began, go_on


# --- merging, and installing


def test_a_thread_merges_and_a_later_commit_installs(open_again, small):
    repo, model = open_again(), dict[str, bytes]()
    for number in range(4):
        model |= fill(repo, number)
    number = 0

    def is_installed() -> list[str]:
        nonlocal number
        number += 1
        put(repo, "small", b"%d" % number)
        return installed(repo)

    wait_until(is_installed)
    head = repo.engine.commits.head()
    [name] = head.header.compaction_outputs
    found = next(run for run in head.header.runs if run.pack == name)
    assert found.seq == 0
    assert found.entries > aside.KEYS
    assert len(head.header.runs) < 6
    wait_until(lambda: not any(file.endswith(".run") and file[:32] == name.id.hex() for file in staged(repo)))
    for each in (repo, open_again()):
        assert content(each) == model | {"small": b"%d" % number}


def test_the_file_is_as_the_format_says(open_again, inline):
    repo = open_again()
    with_one(repo)
    pack = some(repo)
    inputs = [run.inside(repo.engine.commits.head().header.name) for run in repo.engine.commits.head().header.runs]
    assert list(pack.inputs) == inputs
    content = repo.engine.storage.read(pack.data.name.path)
    assert len(content) == pack.data.end
    assert packfile.decode_head(content[:64])[::2] == (pack.data.name.id, 0)
    frame = packfile.decode_frame(memoryview(content), packfile.HEAD_SIZE)
    assert (frame.kind, frame.seen, frame.sequence, frame.key, frame.checksum) == (packfile.FRAME_RUN, 0, 0, b"", 0)
    assert (frame.offset, frame.length, frame.end) == (pack.run.offset, pack.run.length, pack.data.end)
    merged = repo.mapping().runs.merge(2)
    assert content[frame.offset : frame.offset + frame.length] == bytes(merged)
    put(repo)


def test_no_small_commit_waits_for_it(open_again, small, monkeypatch):
    """While a thread merges, which takes as long as it likes, commits are made, and leave its inputs alone."""
    began, go_on = halted(monkeypatch)
    repo = open_again()
    model = fill(repo, 0) | fill(repo, 1)
    assert began.wait(TIMEOUT)
    inputs = repo.mapping().run_names
    for number in range(40):
        put(repo, f"small/{number}")
        assert repo.mapping().run_names[-2:] == inputs
    assert len(repo.mapping().run_names) < 2 + 12
    model |= fill(repo, 2)  # nor does one that brings as much as was to be merged
    assert repo.mapping().run_names[-2:] == inputs
    go_on.set()
    wait_until(lambda: waiting(repo))
    put(repo)
    assert some_run(repo) in installed(repo)
    assert content(repo) == model | {f"small/{number}": b"1" for number in range(40)} | {"small": b"1"}


def some_run(repo: txstore.Repository) -> str:
    return next(run.pack.path for run in repo.mapping().run_names if run.pack is not None and run.pack.branch is None)


def test_who_commits_once_merges_nothing_aside(open_again, inline):
    for number in range(4):
        repo = open_again()
        fill(repo, number)
        assert repo.engine.commits.compaction_outputs._merges == {}
    assert packs(repo) == []
    fill(repo, 4)
    assert waiting(repo) is not None


def test_of_sixteen_commits_one_looks(open_again, inline, monkeypatch):
    monkeypatch.setattr(compaction, "STEP", 16)
    repo = open_again()
    for number in range(16):
        fill(repo, number)
        assert waiting(repo) is None
    fill(repo, 16)
    assert waiting(repo) is not None
    put(repo)
    assert len(repo.mapping().run_names) < 8


def test_each_branch_has_its_own(open_again, inline):
    repo = open_again()
    model = with_one(repo)
    repo.branches["dev"] = repo.head().id
    on_dev = model | fill(repo, 2, "dev")
    assert waiting(repo, "dev") is None  # the first commit to it
    on_dev |= fill(repo, 3, "dev")
    assert some(repo, "dev") is not some(repo)
    put(repo, branch="dev")
    assert installed(repo, "dev")
    assert waiting(repo) is not None
    assert content(repo, "dev") == on_dev | {"small": b"1"}
    put(repo)
    assert installed(repo)
    assert content(repo) == model | {"small": b"1"}


# --- what it is installed by


def test_what_others_have_merged_meanwhile_is_dropped(open_again, inline):
    repo, other = open_again(), open_again()
    model = with_one(repo)
    path = some(repo).data.name.path
    assert path in packs(repo)
    other.optimize()
    put(repo)
    assert installed(repo) == []
    wait_for_background_cleanup()
    assert waiting(repo) is None or some(repo).data.name.path != path
    assert path not in packs(repo)
    assert content(repo) == model | {"small": b"1"}


def test_what_waited_for_long_is_installed_only_where_it_is_held(open_again, inline):
    """On an object store, others take it for what the dead have left; on a disk, they see that this process lives."""
    repo = open_again()
    with_one(repo)
    pack = some(repo)
    pack._began -= INSTALLED_FOR
    put(repo)
    is_held = not repo.engine.commits.staged.uploads
    assert (pack.data.name.path in installed(repo)) == is_held
    wait_for_background_cleanup()
    assert (pack.data.name.path in packs(repo)) == is_held


def test_what_waits_for_a_branch_that_is_deleted_goes(open_again, inline):
    repo = open_again()
    put(repo)
    repo.branches["dev"] = repo.head()
    for number in range(2):
        fill(repo, number, "dev")
    pack = some(repo, "dev")
    del repo.branches["dev"]
    wait_for_background_cleanup()
    assert pack.data.name.path not in packs(repo)


def test_what_waits_for_a_branch_that_nobody_commits_to_goes_in_time(open_again, inline):
    repo = open_again()
    put(repo)
    repo.branches["dev"] = repo.head()
    for number in range(2):
        fill(repo, number, "dev")
    pack = some(repo, "dev")
    put(repo, "other")
    assert some(repo, "dev") is pack
    pack._began -= INSTALLED_FOR
    put(repo, "another")
    wait_for_background_cleanup()
    assert waiting(repo, "dev") is None
    assert pack.data.name.path not in packs(repo)


def test_who_is_interrupted_when_its_commit_has_installed_one_drops_nothing(open_again, inline, monkeypatch):
    repo = open_again()
    model = with_one(repo)
    pack, settle = some(repo), CompactionOutputs.settle

    def interrupted(self: CompactionOutputs, *arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(CompactionOutputs, "settle", settle)
        raise KeyboardInterrupt  # right before it is told what came of it

    monkeypatch.setattr(CompactionOutputs, "settle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(repo)
    assert installed(repo) == [pack.data.name.path]
    for number in range(3):
        put(repo, f"small {number}")
    wait_for_background_cleanup()
    assert pack.data.name.path in packs(repo)
    assert model.items() <= content(repo).items()
    assert waiting(repo) is not pack, "it is in the way of no later one"


def test_a_commit_comes_before_the_one_that_has_installed_a_pack_has_settled(open_again, inline, monkeypatch):
    """By another thread: it must not take the pack for useless."""
    repo = open_again()
    with_one(repo)
    pack, settle, held = some(repo), CompactionOutputs.settle, repo.engine.commits.compaction_outputs

    def late(self: CompactionOutputs, *arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(CompactionOutputs, "settle", settle)
        put(repo, "by another thread")
        assert pack in held._unsettled
        settle(self, *arguments, **named)

    monkeypatch.setattr(CompactionOutputs, "settle", late)
    put(repo)
    wait_for_background_cleanup()
    assert pack not in held._unsettled
    assert pack.data.name.path in packs(repo)
    assert not repo.engine.storage.exists(pack._staged)


def test_what_others_merge_while_a_commit_tries_to_install_it_goes(open_again, inline):
    repo = open_again()
    with_one(repo)
    held = repo.engine.commits.compaction_outputs
    pack = held.take("main")
    assert pack is not None
    open_again().optimize()
    put(repo)  # by another thread
    assert pack in held._unsettled
    held.settle("main", pack, None, may_be_made=False)
    wait_for_background_cleanup()
    assert pack not in held._unsettled
    assert pack.data.name.path not in packs(repo)
    assert not repo.engine.storage.exists(pack._staged)


def test_what_runs_out_of_memory_is_begun_anew(open_again, inline, monkeypatch):
    repo = open_again()
    fill(repo, 0)
    with monkeypatch.context() as patched:
        patched.setattr(compaction_outputs, "name_run", raising(MemoryError()))
        with pytest.raises(MemoryError):
            fill(repo, 1)
    assert not repo.engine.commits.compaction_outputs._merges
    fill(repo, 2)
    assert waiting(repo) is not None


def test_what_is_still_being_merged_when_the_process_ends_goes(open_again, inline, monkeypatch):
    """The thread may be done later than whoever drops what waits."""
    repo = open_again()
    merge, held, begun = CompactionOutputs._merge, repo.engine.commits.compaction_outputs, []

    def late(self: CompactionOutputs, *arguments: Any) -> None:
        self.drop_all()
        begun.append(arguments)
        merge(self, *arguments)

    monkeypatch.setattr(CompactionOutputs, "_merge", late)
    fill(repo, 0)
    fill(repo, 1)
    assert begun
    assert not held._merges
    assert not packs(repo)
    assert not paths_in(repo.engine.storage, names.STAGING)


def test_a_commit_that_fails_leaves_it_to_the_next(open_again, inline, monkeypatch):
    repo = open_again()
    model = with_one(repo)
    pack = some(repo)
    with monkeypatch.context() as patched:
        patched.setattr(RenameUnderLock, "take", raising(OSError(28, "full")))
        patched.setattr(ExclusiveCreate, "take", raising(OSError(28, "full")))
        transaction = repo.begin()
        transaction["small"] = b"1"
        with pytest.raises(OSError, match="full"):
            transaction.commit()
    assert some(repo) is pack
    transaction.commit()
    assert installed(repo) == [pack.data.name.path]
    assert content(repo) == model | {"small": b"1"}


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("is_made", [True, False])
def test_of_a_commit_of_unknown_outcome_it_stays(open_again, inline, monkeypatch, is_made):
    repo = open_again()
    model = with_one(repo)
    path, take = some(repo).data.name.path, type(repo.engine.commits.versions).take

    def lost(self: Any, *arguments: Any, **options: Any) -> Any:
        if is_made:
            take(self, *arguments, **options)
        raise CommitUnknownError("?", reason="the answer was lost")

    monkeypatch.setattr(RenameUnderLock, "may_have_taken", lambda *_: True)  # as everywhere that an answer can be lost
    with monkeypatch.context() as patched:
        patched.setattr(type(repo.engine.commits.versions), "take", lost)
        with pytest.raises(CommitUnknownError):
            put(repo)
    assert waiting(repo) is None
    model |= {"small": b"1"} if is_made else {}
    for number in range(2, 6):
        model |= fill(repo, number)
    for each in (repo, open_again()):
        each.vacuum()
        assert path in packs(each)
    assert content(open_again()) == model


def test_a_version_that_was_lost_means_to_look_again(open_again, inline, monkeypatch):
    """Others merge the inputs when the header is about to be written for the second time: it does not list the pack."""
    repo, other = open_again(), open_again()
    model = with_one(repo)
    path, contents, left = some(repo).data.name.path, Publisher._write_header, [other]

    def write(self: Publisher, *arguments: Any) -> Any:
        stored = contents(self, *arguments)
        if left and self.commits is repo.engine.commits:
            left.pop().optimize()
            listed.append(stored.header.compaction_outputs)
        elif self.commits is repo.engine.commits:
            listed.append(stored.header.compaction_outputs)
        return stored

    listed: list[Any] = []
    monkeypatch.setattr(Publisher, "_write_header", write)
    if not repo.engine.commits.staged.uploads:
        monkeypatch.setattr(type(repo.engine.storage), "lock", without_turns)
    put(repo)
    assert [len(each) for each in listed] == [1, 0]
    assert path not in installed(repo)
    assert content(repo) == model | {"small": b"1"}


def without_turns(*_: Any, **__: Any) -> Any:
    return contextlib.nullcontext()


def test_who_loses_a_place_in_the_queue_installs_at_the_second_try(on_disk, inline, monkeypatch):
    repo = on_disk()
    with_one(repo)
    path, publish, left = some(repo).data.name.path, Publisher.publish, [None]

    def lose(self: Publisher, *arguments: Any) -> Any:
        if left:
            left.pop()
            raise LostPlaceError
        return publish(self, *arguments)

    monkeypatch.setattr(Publisher, "publish", lose)
    put(repo)
    assert installed(repo) == [path]


def test_who_queues_installs_on_top_of_what_is_ahead(on_disk, inline, monkeypatch):
    """Two threads of one process: the second names as its parent what the first has not made yet."""
    repo = on_disk()
    model = with_one(repo)
    path, sync = some(repo).data.name.path, Publisher._sync
    first_syncs, second_waits = threading.Event(), threading.Event()

    def wait(self: Publisher) -> None:
        if threading.current_thread().name == "first":
            first_syncs.set()
            assert second_waits.wait(TIMEOUT)
        elif threading.current_thread().name == "second":
            second_waits.set()
        sync(self)

    monkeypatch.setattr(Publisher, "_sync", wait)
    first = threading.Thread(target=put, args=(repo, "first"), name="first")
    first.start()
    assert first_syncs.wait(TIMEOUT)
    second = threading.Thread(target=put, args=(repo, "second"), name="second")
    second.start()
    first.join(TIMEOUT)
    second.join(TIMEOUT)
    brought = [
        [pack.name.path for pack in stored.header.packs]
        for stored in (repo.engine.commits.files.read("main", 2), repo.engine.commits.files.read("main", 3))
    ]
    assert brought == [[path], []]
    assert content(repo) == model | {"first": b"1", "second": b"1"}


def test_of_threads_that_commit_at_once_one_installs(open_again, inline):
    repo = open_again()
    model = with_one(repo)
    for number in range(2, 8):
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda each: put(repo, f"t/{each}"), range(4 * number, 4 * number + 4)))
        model |= fill(repo, number) | {f"t/{each}": b"1" for each in range(4 * number, 4 * number + 4)}
    brought = [
        pack.name.path
        for version in range(repo.head().version + 1)
        for pack in repo.engine.commits.files.read("main", version).header.packs
    ]
    assert brought
    assert len(set(brought)) == len(brought)
    assert content(repo) == model


# --- group commits


def test_an_proposal_lists_no_compaction_output(far, inline):
    repo = txstore.Repository(f"memory://{uuid.uuid4().hex}")
    with_one(repo)
    put(repo)
    adopting, commits = repo.engine.commits.head(), repo.engine.commits
    assert len(adopting.header.packs) == 1
    file = repo.engine.storage.read(adopting.path)
    proposal = proposal_of(file, adopting)
    header, _ = group_commits._header_of(proposal)
    assert header.packs == ()
    assert [run.pack for run in header.runs] == [None]
    assert members(file, commits.head())[0].stored.header.packs == adopting.header.packs


def test_behind_another_in_a_group_commit_it_waits_for_the_next_commit(far, inline, monkeypatch):
    url = f"memory://{uuid.uuid4().hex}"
    repos = [txstore.Repository(url) for _ in range(3)]
    model = with_one(repos[0])
    put(repos[1], "a")
    pack = some(repos[0])
    crew = [repo.begin(f"writer {number}") for number, repo in enumerate(repos)]
    for number, transaction in enumerate(crew):
        transaction[f"w{number}/c/0"] = b"1"
    lead = GroupCommits._lead

    def slowly(self: GroupCommits, content: bytes, mine: Any, trip: float) -> Any:
        if mine.header.message == "writer 0":
            return None  # it follows
        decided = repos[0].engine.commits.heads._decided
        wait_until(lambda: len(decided.list_from("main", 3).proposals) >= 2 or taken(url, 3))
        return lead(self, content, mine, trip)

    monkeypatch.setattr(GroupCommits, "_lead", slowly)
    for repo in repos:
        repo.engine.commits.heads._contention.set_contended("main", True)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda each: each.commit(), crew))
    mine = next(commit for commit in repos[0].log() if commit.message == "writer 0")
    stored = repos[0].engine.commits.files.read("main", mine.version)
    assert stored.header.group_commit is not None
    assert stored.header.group_commit.place > 0
    assert stored.header.packs == ()
    assert some(repos[0]) is pack
    put(repos[0])
    assert installed(repos[0]) == [pack.data.name.path]
    assert content(repos[0]) == model | {"a": b"1", "small": b"1"} | {f"w{n}/c/0": b"1" for n in range(3)}
    assert txstore.Repository(url).verify().faults == []


def taken(url: str, version: int) -> bool:
    return txstore.Repository(url).engine.storage.exists(names.commit_path("main", version))


# --- what fails, forks and ends


def test_a_merge_that_fails_is_given_up_and_done_again(open_again, inline, monkeypatch):
    repo, before = open_again(), list[str]()
    with monkeypatch.context() as patched:
        patched.setattr(
            "txstore.segments.compaction_outputs.packfile.encode_compaction_output", raising(OSError(28, "full"))
        )
        model = fill(repo, 0) | fill(repo, 1)
        assert waiting(repo) is None
        assert repo.engine.commits.compaction_outputs._merges == {}
    assert packs(repo) == before
    assert staged(repo) == []
    model |= fill(repo, 2)
    put(repo)
    assert installed(repo)
    assert content(repo) == model | {"small": b"1"}


@pytest.mark.parametrize("call", ["create", "file.write", "file.sync", "make_directory", "link", "sync_directory"])
def test_nothing_is_left_of_one_that_fails(on_disk, inline, call):
    repo = on_disk()
    fill(repo, 0)
    before = packs(repo)
    watched = watch(repo)
    write = CompactionOutput.__init__

    def fails(self: CompactionOutput, *arguments: Any) -> None:
        watched.before[call] = raising(OSError(5, "Input/output error"))
        try:
            write(self, *arguments)
        finally:
            del watched.before[call]

    CompactionOutput.__init__ = fails  # type: ignore[method-assign]
    try:
        fill(repo, 1)
    finally:
        CompactionOutput.__init__ = write  # type: ignore[method-assign]
    assert waiting(repo) is None
    assert packs(repo) == before
    assert staged(repo) == []


def test_a_disk_that_is_nearly_full_is_left_alone(on_disk, inline, monkeypatch):
    repo = on_disk()
    with monkeypatch.context() as patched:
        patched.setattr(type(repo.engine.storage), "free", lambda _: 10_000)
        fill(repo, 0)
        fill(repo, 1)
        assert repo.engine.commits.compaction_outputs._merges == {}
    fill(repo, 2)
    put(repo)
    assert installed(repo)


def test_a_forked_child_leaves_it_to_its_parent(on_disk, inline):
    repo = on_disk()
    with_one(repo)
    path = some(repo).data.name.path

    def in_the_child() -> tuple[bool, list[str]]:
        forgotten = waiting(repo) is None
        fill(repo, 2)
        fill(repo, 3)
        compaction_outputs._drop_at_exit()
        return forgotten, packs(repo)

    forgotten, there = in_child(in_the_child)
    assert forgotten
    assert path in there
    assert some(repo).data.name.path == path
    put(repo)
    assert installed(repo)


def test_a_repository_that_nobody_has_any_more_leaves_nothing(open_again, inline):
    repo = open_again()
    with_one(repo)
    assert packs(repo)
    del repo
    repo = open_again()

    def is_gone() -> bool:
        gc.collect()  # there may be a thread that is about to write the last head cache
        return not staged(repo) and not packs(repo)

    wait_until(is_gone)


_PROGRAM = """
import sys, pytest, txstore
from tests import aside
aside.inline(pytest.MonkeyPatch())
repo = txstore.Repository(sys.argv[1])
for number in range(2):
    aside.fill(repo, number)
assert aside.waiting(repo) is not None
print("waits", flush=True)
"""


def test_when_the_process_ends_it_is_deleted(on_disk):
    done = run_python(_PROGRAM, on_disk().url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "waits\n", "")
    repo = on_disk()
    assert packs(repo) == []
    assert staged(repo) == []


def test_of_a_process_that_was_killed_others_delete_it(on_disk):
    program = _PROGRAM + "\nimport time\ntime.sleep(1000)\n"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, on_disk().url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        repo = on_disk()
        put(repo)
        repo.vacuum()
        assert [file.endswith(".run") for file in staged(repo)] == [True]  # it lives
        assert len(packs(repo)) == 1
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    put(on_disk())
    assert staged(repo) == []
    repo.vacuum()
    assert packs(repo) == []


def test_a_thread_that_merges_keeps_no_process_from_ending(on_disk):
    program = _PROGRAM.replace("aside.inline", "aside.small").replace("assert aside.waiting(repo) is not None", "")
    program = program.replace(
        "repo = ",
        "import threading\nfrom txstore.segments.compaction_outputs import CompactionOutput\n"
        "began = threading.Event()\n"
        "CompactionOutput.__init__ = lambda *_: (began.set(), threading.Event().wait())\nrepo = ",
    ).replace('print("waits"', 'assert began.wait(60)\nprint("waits"')
    done = run_python(program, on_disk().url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "waits\n", "")


def test_what_is_staged_of_it_is_no_transaction(open_again, inline):
    repo = open_again()
    with_one(repo)
    assert staged(repo) != []
    assert list(recorded(repo.engine.storage)) == []
    assert repo.verify().strays == []
    put(repo)


def test_a_snapshot_is_pinned_only_until_its_runs_are_open(on_disk, small, monkeypatch):
    began, go_on = halted(monkeypatch)
    repo = on_disk()
    fill(repo, 0)
    fill(repo, 1)
    assert began.wait(TIMEOUT)
    put(repo, "a")
    put(repo, "b")
    gc.collect()
    try:
        assert repo.vacuum(keep=1).oldest_kept == 3
    finally:
        go_on.set()
    wait_until(lambda: waiting(repo))
    put(repo, "c")
    assert installed(repo)


def test_to_install_takes_no_request_more(far, requests, inline, monkeypatch):
    """But the one, which nobody waits for, that says that the pack is no longer to be held."""
    repo = txstore.Repository(f"memory://{uuid.uuid4().hex}")
    with_one(repo)
    monkeypatch.setattr(compaction, "STEP", 1 << 40)  # no more of them
    requests.clear()
    put(repo)
    wait_for_background_cleanup()
    adopting = [path for path in requests if not path.endswith(".run")]
    assert len(requests) == len(adopting) + 1
    assert installed(repo)
    requests.clear()
    put(repo, value=b"2")
    assert len(requests) == len(adopting)
    assert repo.verify().faults == []
