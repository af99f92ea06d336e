"""Fixtures that every test shares. Each repository that a test used is verified when the test ends."""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import zarr
import zarr.core.codec_pipeline

import txstore

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the shell has started us in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def open_repo(tmp_path: Path) -> Iterator[Callable[..., txstore.Repository]]:
    """Open repositories below the test's folder, by name; what exists of them at the end must verify."""
    opened: list[txstore.Repository] = []

    def open_repo(name: str = "data.tx", **options: object) -> txstore.Repository:
        repo = txstore.Repository(tmp_path / name, **options)  # type: ignore[arg-type]
        opened.append(repo)
        return repo

    yield open_repo
    for repo in opened:
        if repo.exists:
            assert repo.verify().faults == []


@pytest.fixture
def repo(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    """A repository that does not exist yet; verified when the test ends."""
    return open_repo()


PIPELINES = [name for name in ("Batched", "Fused") if hasattr(zarr.core.codec_pipeline, f"{name}CodecPipeline")]


@pytest.fixture(params=PIPELINES)
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each of zarr's codec pipelines; the fused one, of zarr 3.2 and later, uses the store from threads."""
    with zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{request.param}CodecPipeline"}):
        yield request.param


#: What `make test` leaves to `make test-full` besides what its own module marks: how ids begin, below tests/.
LONG = (
    "cli/test_cli.py::test_storage_options",
    "cli/test_demo.py",
    "history/test_ranged_runs.py::test_opening_and_reading_one_of_many_chunks_takes_three_requests",
    "history/test_runs.py::test_build_needs_little_more_than_its_output",
    "history/test_runs.py::test_damage_is_an_error_or_changes_nothing",
    "interchange/test_docs.py",
    "interchange/test_import.py::test_from_s3_and_to_it",
    "interchange/test_import_files.py::test_each_engine_of_xarray_reads_text_in_files_and_groups",
    "interchange/test_publish.py::test_killed_at_every_step",
    "interchange/test_references.py",
    "interchange/test_virtual.py::test_several_processes_of_one_transaction",
    "loaders/test_stream.py",
    "locks/test_chunk_locks.py::test_a_stopped_holder_keeps_its_locks",
    "locks/test_chunk_locks.py::test_an_owner_that_nobody_has_any_more_holds_nothing",
    "locks/test_chunk_locks.py::test_any_order_of_the_keys_will_do",
    "locks/test_chunk_locks.py::test_ctrl_c_ends_waiting_and_nothing_else",
    "locks/test_chunk_locks.py::test_many_that_begin_at_once_agree",
    "locks/test_chunk_locks.py::test_no_flipped_bit_lets_two_processes_have_one_lock",
    "locks/test_chunk_locks.py::test_processes_exclude_each_other",
    "locks/test_chunk_locks.py::test_processes_take_turns",
    "locks/test_chunk_locks.py::test_who_waits_has_the_locks_when_their_holder_is_killed",
    "maintenance/test_backup.py",
    "maintenance/test_optimize.py::test_many_rewrites_leave_little",
    "maintenance/test_retention.py::test_files_and_bytes_stay_bounded",
    "model/",
    "store/test_pickling.py::test_another_process_writes_into_the_same_transaction",
    "store/test_stateful.py::test_a_hierarchy_behaves_as_in_memory_within_a_transaction",
    "system/bad_input/test_bombs.py::test_many_runs_that_are_one",
    "system/bad_input/test_damage.py",
    "system/bad_input/test_interpreter_exit.py",
    "system/dask/",
    "system/processes/test_constraints.py",
    "system/processes/test_descriptors.py",
    "system/processes/test_end_of_transactions.py",
    "system/processes/test_failed_blocks.py",
    "system/processes/test_fork.py",
    "system/processes/test_lock_threads.py",
    "system/processes/test_locktable.py",
    "system/processes/test_lost_participants.py",
    "system/processes/test_named.py::test_four_ranks_and_a_restart",
    "system/processes/test_participants.py::test_dask_processes_fill_one_array",
    "system/processes/test_participants.py::test_joblib_workers_fill_one_array",
    "system/processes/test_participants.py::test_values_of_all_sizes_from_threads_of_children",
    "system/processes/test_participants.py::test_what_was_read_before_the_lock_is_to_be_read_under_it",
    "system/processes/test_participants.py::test_who_had_to_wait_for_a_lock_sees_what_was_written_under_it",
    "system/processes/test_participants.py::test_workers_fill_one_array[with_executor",
    "system/processes/test_participants.py::test_workers_fill_one_array[with_living_pool",
    "system/processes/test_participants.py::test_workers_fill_one_array[with_pool",
    "system/processes/test_participants.py::test_workers_fill_one_array[with_processes-forkserver",
    "system/processes/test_participants.py::test_workers_fill_one_array[with_processes-spawn",
    "system/processes/test_readers.py",
    "system/processes/test_reclaiming.py",
    "system/processes/test_stale_arrays.py",
    "system/processes/test_waiting_commits.py",
    "system/processes/test_writers.py::test_disjoint_keys_never_conflict",
    "system/remote/",
    "transactions/test_regions.py::test_any_basic_selection",
    "transactions/test_regions.py::test_more_chunks_than_can_be_locked",
)


#: Of the long tests, TXSTORE_LONG_SHARE=2 runs one half, =3 a third, and so on: those that TXSTORE_LONG_SEED draws.
SHARE, SEED = int(os.environ.get("TXSTORE_LONG_SHARE", "1")), os.environ.get("TXSTORE_LONG_SEED", "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left = [], []
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(LONG):
            item.add_marker(pytest.mark.long)
        is_left = item.get_closest_marker("long") is not None and zlib.crc32((SEED + item.nodeid).encode()) % SHARE
        (left if is_left else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
