"""The suites of local repositories, on object stores and file servers: the same tests, another `open_repo`.

Each `test_*.py` here brings in the tests of one suite. What is about files, maps, pins or the lock table is left out
below, with the reason; so is what asks for no repository. A share of the tests, chosen by name, runs on each of the
servers by default; TXSTORE_REMOTE=10 runs ten times as many, TXSTORE_REMOTE=all all of them.
"""

import gc
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import txstore
from tests.system.remote.conftest import STORES, with_engine
from tests.system.remote.servers import Server
from tests.tools.upkeep import below
from txstore.history import opening
from txstore.storage.objects import client

_ASKED = os.environ.get("TXSTORE_REMOTE", "1")
RUNS_ALL = _ASKED == "all"
#: Of how many tests one runs on a server by default.
ONE_OF = {
    "memory": 16, "s3-obstore": 64, "s3-s3fs": 128, "azure-adlfs": 256, "azure-obstore": 256, "sftp": 128,
    "gcs-gcsfs": 256, "gcs-obstore": 256, "smb": 32,
    "ceph-s3fs": 16, "ceph-obstore": 16,
}  # fmt: skip

_FILES = "looks at files, or damages them"
_DISK = "a disk's storage fails, or is watched, at operations that an object store does not have"
_PINS = "nothing is pinned: what somebody reads may be given up, and reading it is an error then"
_MAPPED = "about maps of files and where values lie in them"
_LARGE = "a run of the disk's own is enough: nothing but time is different"
_HEAD_CACHE = "the head cache is not written with each commit"
_IN_MEMORY = "what is staged is in memory"

LEFT_OUT: dict[str, dict[str, str]] = {
    "test_branches.py": {
        "test_a_branch_that_is_deleted_just_before_the_rename": "nobody waits for a commit: see test_branch_races.py",
        "test_records_that_are_damaged_or_lie": _FILES,
        "test_ways_in_and_out": "credentials are given elsewhere",
        "test_what_is_no_record_is_passed_over": _FILES,
    },
    "test_merged.py": {"test_a_turned_bit_is_never_other_data": _FILES},
    "test_maintained_branches.py": {
        "test_a_lost_fork_point_is_reported": _FILES,
        "test_a_record_that_is_torn_is_made_anew_from_commits": _FILES,
        "test_nothing_is_deleted_while_a_record_is_damaged": _FILES,
        "test_pins_of_one_branch_are_not_those_of_another": _PINS,
        "test_verify_looks_at_every_branch": _FILES,
        "test_what_both_branches_read_touches_both": _FILES,
        "test_what_only_a_deleted_branch_needs_goes": _FILES,
    },
    "test_late_writes.py": {
        "test_late_writes_after_a_failed_write_are_refused": "only an upload can fail: see test_late_writes.py here"
    },
    "test_operations.py": {
        "test_a_backup_has_the_records": "credentials are given elsewhere",
        "test_damage_is_found_and_moved_away": _FILES,
        "test_killed_between_the_operation_and_its_record": "credentials are given elsewhere",
        "test_on_the_command_line": "credentials are given elsewhere",
    },
    "test_optimize.py": {
        "test_a_second_time_finds_nothing_whatever_the_runs_weighed": _FILES,
        "test_damage_is_not_copied": _FILES,
        "test_new_packs_end_at_a_length": "of objects, it is another length",
        "test_the_medium_fails": _DISK,
    },
    "test_retention.py": {
        "test_a_fold_that_fails_fails_no_commit": _DISK,
        "test_files_and_bytes_stay_bounded": _LARGE,
        "test_what_is_no_retention": _FILES,
    },
    "test_stale.py": {"test_a_rollback_that_could_not_finish_is_remembered": _DISK},
    "test_states.py": {
        "test_dropping_what_is_staged_warns_and_counts": _IN_MEMORY,
        "test_writing_to_a_reader": _HEAD_CACHE,
    },
    "test_store.py": {
        "test_a_value_from_1_kib_on_is_aligned_for_every_dtype": _MAPPED,
        "test_a_value_that_is_read_is_not_copied": _MAPPED,
        "test_reading_fifty_commits_holds_no_descriptor": _MAPPED,
    },
    "test_usage.py": {"test_it_adds_up": _FILES},
    "test_vacuum.py": {
        "test_a_commit_at_every_step_of_a_vacuum": _PINS,
        "test_a_copy_of_the_directory_has_no_locks": _FILES,
        "test_a_oldest_kept_above_all_commits": _FILES,
        "test_a_head_cache_that_was_written_late": _HEAD_CACHE,
        "test_a_reader_without_a_pin_gets_no_fill_values": "what was read with it is kept, so there is no need to read",
        "test_a_search_that_a_vacuum_overtakes": _FILES,
        "test_a_vacuum_at_every_step_of_a_commit": _PINS,
        "test_a_writer_that_sleeps_right_before_its_rename": _HEAD_CACHE,
        "test_a_writer_whose_base_was_passed": "it may be told later: see tests/history/test_object_versions.py",
        "test_orphans_and_what_the_dead_left": _FILES,
    },
}
#: Servers that look through all they hold at each request: what a test leaves there would make the next ones slower,
#: and after a thousand of them Azurite takes longer to answer than its clients wait.
EMULATED = {"s3", "azure", "gcs"}
#: fsspec's memory is one process's own.
OF_ONE_PROCESS = {
    "test_a_reader_in_another_process_keeps_its_branch",
    "test_two_processes_lose_no_record",
    "test_a_child_declares_nothing_and_breaks_nothing",
    "test_a_snapshot_stays_at_its_commit_in_another_process",
    "test_a_writer_of_a_repository_that_does_not_exist_is_independent_in_another_process",
    "test_another_process_writes_into_the_same_transaction",
    "test_dask_computes_from_a_snapshot",
}


def _stores_of(test: str) -> list[str]:
    number = zlib.crc32(test.encode())
    return [name for name in STORES if RUNS_ALL or number % max(1, ONE_OF[name] // int(_ASKED)) == 0]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_name" in metafunc.fixturenames:
        metafunc.parametrize("store_name", sorted(STORES), indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left = [], []
    for item in items:
        (kept if _runs(item) else left).append(item)
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.long)
            # What is dropped there is deleted later, in a thread, and the warning comes in the midst of another test.
            item.add_marker(pytest.mark.filterwarnings("ignore::txstore.UncommittedChangesWarning"))
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def _runs(item: pytest.Item) -> bool:
    if item.path.parent != Path(__file__).parent:
        return True
    callspec = getattr(item, "callspec", None)
    store = None if callspec is None else callspec.params.get("store_name")
    if store is None:
        return False
    reasons = LEFT_OUT.get(item.path.name, {})
    name = getattr(item, "originalname", item.name)
    if store == "memory" and name in OF_ONE_PROCESS:
        return False
    return name not in reasons and store in _stores_of(f"{item.path.name}::{item.name.replace(store, '')}")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what is imported stays: `collected` need not look through it each time


@pytest.fixture(autouse=True)
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test has dropped is gone when it ends."""
    # Some libraries make clients so large that to look through those of other tests takes longer than a test.
    monkeypatch.setattr(client, "MOST_BACKENDS", 2)
    yield
    gc.collect()


@pytest.fixture
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(store_name: str, server_of: Callable[[str], Server]) -> Server:
    name, engine = STORES[store_name]
    return with_engine(server_of(name), engine)


@pytest.fixture
def open_repo(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., txstore.Repository]]:
    """Open repositories on a server, by name; what exists of them at the end must verify."""
    opened: list[txstore.Repository] = []
    top = server.url()
    open_objects = opening.open_objects

    def with_credentials(url: str, options: dict[str, object], **more: bool) -> object:
        # Tests open by URL what `open_repo` has opened before.
        return open_objects(url, options or (server.storage_options if url.startswith(top) else {}), **more)

    monkeypatch.setattr(opening, "open_objects", with_credentials)

    def open_repo(name: str = "data.tx", **options: object) -> txstore.Repository:
        repo = txstore.Repository(f"{top}/{name}", storage_options=server.storage_options, **options)  # type: ignore[arg-type]
        opened.append(repo)
        return repo

    yield open_repo
    try:
        for repo in opened:
            if repo.exists:
                assert repo.verify().faults == []
    finally:
        if server.name in EMULATED:
            objects = open_objects(top, server.storage_options)
            objects.delete([path for path, _ in below(objects)])
