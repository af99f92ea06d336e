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
    "cli/test_branches.py::test_list_create_rename_delete",
    "cli/test_cli.py::test_output_that_nobody_reads",
    "cli/test_cli.py::test_run_as_a_module",
    "cli/test_cli.py::test_storage_options",
    "cli/test_cli.py::test_the_shell_completes",
    "cli/test_demo.py",
    "cli/test_hostile.py::test_errors",
    "cli/test_hostile.py::test_json_is_json",
    "cli/test_hostile.py::test_no_command_lets_a_repository_steer_the_terminal",
    "cli/test_hostile.py::test_no_command_shows_a_password",
    "cli/test_hostile.py::test_no_command_that_goes_there_shows_a_password",
    "cli/test_hostile.py::test_the_installed_command",
    "cli/test_tx.py::test_commit_and_rollback_wait_for_nobody",
    "cli/test_tx.py::test_what_becomes_of_a_process",
    "format/test_header.py::test_damaged_headers_are_taken_as_python_does",
    "format/test_header.py::test_headers_are_encoded_as_python_does",
    "format/test_header.py::test_plain_headers_are_decoded_as_python_does",
    "format/test_header.py::test_what_begins_a_branch_or_merges_another_is_left_to_python",
    "format/test_layout.py::test_mutated_bytes",
    "format/test_layout.py::test_random_bytes",
    "format/test_layout.py::test_round_trip",
    "fuzz/test_fuzz.py::test_mutated",
    "fuzz/test_fuzz.py::test_repositories_that_lie",
    "history/test_branches.py::test_of_two_processes_that_create_a_name_one_wins",
    "history/test_branches.py::test_pickles",
    "history/test_changes.py::test_as_two_dicts_differ",
    "history/test_maps.py::test_of_small_files_little_is_kept",
    "history/test_ranged_runs.py::test_opening_and_reading_one_of_many_chunks_takes_three_requests",
    "history/test_ranged_runs.py::test_ranged_runs_answer_as_mapped_ones",
    "history/test_runs.py::test_a_graft_has_the_live_entries_under_another_name",
    "history/test_runs.py::test_both_write_the_same_bytes_and_read_the_same_answers",
    "history/test_runs.py::test_build_needs_little_more_than_its_output",
    "history/test_runs.py::test_damage_is_an_error_or_changes_nothing",
    "history/test_runs.py::test_forged_blocks_mean_the_same_to_both",
    "history/test_runs.py::test_forged_bytes_mean_the_same_to_both",
    "history/test_runs.py::test_merging_changes_no_answer_and_its_order_no_byte",
    "history/test_runs.py::test_runs_answer_as_a_dictionary_would",
    "history/test_runs.py::test_the_collector_does_not_clear_the_buffer_of_a_run",
    "interchange/test_docs.py",
    "interchange/test_export.py::test_export_then_import_keeps_every_codec_and_data_type",
    "interchange/test_import.py::test_after_a_death_it_goes_on_where_it_was",
    "interchange/test_import.py::test_from_s3_and_to_it",
    "interchange/test_import.py::test_many_hierarchies_in_one_array_out",
    "interchange/test_import_files.py::test_a_merge_that_was_killed_goes_on_where_it_was",
    "interchange/test_import_files.py::test_each_engine_of_xarray_reads_text_in_files_and_groups",
    "interchange/test_publish.py::test_killed_at_every_step",
    "interchange/test_publish.py::test_readers_without_txstore_see_no_torn_append",
    "interchange/test_references.py",
    "interchange/test_urls.py::test_zarr_opens_what_was_printed",
    "interchange/test_virtual.py::test_several_processes_of_one_transaction",
    "interchange/test_virtual.py::test_xarray_and_fsspec",
    "interchange/test_xarray.py::test_xarray_finds_it",
    "isolation/test_interleavings.py::test_interleavings",
    "isolation/test_weakened.py::test_a_weakened_rule_is_noticed",
    "loaders/test_documentation.py::test_the_examples_run",
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
    "locks/test_locktable_file.py::test_no_living_transaction_loses_a_word",
    "maintenance/test_backup.py",
    "maintenance/test_branches.py::test_a_backup_that_is_interrupted_anywhere_is_a_repository",
    "maintenance/test_branches.py::test_a_turned_bit_is_never_other_data_on_any_branch",
    "maintenance/test_branches.py::test_every_bit_of_a_record_is_restored",
    "maintenance/test_branches.py::test_retention_is_of_one_branch",
    "maintenance/test_erase.py::test_a_repair_brings_nothing_back",
    "maintenance/test_erase.py::test_interrupted_it_is_done_again",
    "maintenance/test_history_races.py",
    "maintenance/test_optimize.py::test_many_rewrites_leave_little",
    "maintenance/test_repair.py::test_a_repair_that_is_killed_is_run_again",
    "maintenance/test_retention.py::test_files_and_bytes_stay_bounded",
    "maintenance/test_retention.py::test_it_waits_until_it_is_worth_it",
    "maintenance/test_vacuum.py::test_a_commit_at_every_step_of_a_vacuum",
    "maintenance/test_vacuum.py::test_a_reader_that_comes_at_every_step_of_a_vacuum",
    "maintenance/test_vacuum.py::test_a_tag_is_written_while_a_vacuum_runs",
    "maintenance/test_vacuum.py::test_a_vacuum_at_every_step_of_a_commit",
    "maintenance/test_vacuum.py::test_interrupted_at_every_step",
    "maintenance/test_vacuum.py::test_two_at_once",
    "merging/test_bad_input.py::test_beside_other_merges_and_commits",
    "merging/test_bad_input.py::test_killed_while_it_merges[5]",
    "merging/test_bad_input.py::test_killed_while_it_merges[9]",
    "merging/test_properties.py",
    "merging/test_rebasing.py::test_processes_that_write_one_chunk_whole",
    "model/",
    "native/test_local.py::test_open_below_follows_nothing_and_opens_no_other_files",
    "pipeline/test_equality.py::test_like_zarrs",
    "pipeline/test_registration.py::test_it_can_be_switched_off",
    "pipeline/test_registration.py::test_the_page_works",
    "pipeline/test_threads.py::test_unaligned_tiles",
    "serving/browser/test_accessibility.py",
    "serving/browser/test_codecs.py",
    "serving/browser/test_views.py",
    "serving/test_readers.py::test_zarr[first digits]",
    "serving/test_readers.py::test_zarr[id of the head]",
    "serving/test_readers.py::test_zarr[tag]",
    "serving/test_server.py::test_a_chunk_that_was_made_to_take_all_memory",
    "serving/test_server.py::test_bytes_that_are_no_request",
    "serving/test_server.py::test_more_connections_than_the_usual_limit_of_descriptors",
    "serving/test_server.py::test_readers_that_do_not_read",
    "storage/test_pack_cache.py::test_processes_share_a_directory_that_is_too_small",
    "store/test_codecs.py::test_a_codec_of_format_3_reads_back_what_was_committed",
    "store/test_pickling.py::test_another_process_writes_into_the_same_transaction",
    "store/test_pickling.py::test_dask_computes_from_a_snapshot",
    "store/test_stateful.py::test_a_hierarchy_behaves_as_in_memory_across_commits",
    "store/test_stateful.py::test_a_hierarchy_behaves_as_in_memory_within_a_transaction",
    "store/test_stateful.py::test_keys_behave_as_a_dict_across_commits",
    "store/test_stateful.py::test_keys_behave_as_a_dict_within_a_transaction",
    "store/test_synchronized.py::test_a_write_is_one_commit_and_does_what_zarr_does",
    "store/test_synchronized.py::test_in_another_process",
    "store/test_zarr.py::test_listing_a_group_does_not_walk_the_chunks",
    "system/bad_input/test_bombs.py::test_many_runs_that_are_one",
    "system/bad_input/test_damage.py",
    "system/bad_input/test_interpreter_exit.py",
    "system/dask/",
    "system/processes/test_constraints.py",
    "system/processes/test_creation.py::test_processes_that_create_one_repository",
    "system/processes/test_creation.py::test_readers_of_a_repository_that_is_being_created",
    "system/processes/test_descriptors.py",
    "system/processes/test_end_of_transactions.py",
    "system/processes/test_failed_blocks.py",
    "system/processes/test_fork.py",
    "system/processes/test_lock_threads.py",
    "system/processes/test_locktable.py",
    "system/processes/test_lost_participants.py",
    "system/processes/test_named.py::test_children_that_are_sent_the_store",
    "system/processes/test_named.py::test_four_ranks_and_a_restart",
    "system/processes/test_named_ends.py::test_listing_while_it_ends",
    "system/processes/test_participants.py::test_a_child_of_a_child",
    "system/processes/test_participants.py::test_dask_processes_fill_one_array",
    "system/processes/test_participants.py::test_groups_and_attributes_in_children",
    "system/processes/test_participants.py::test_joblib_workers_fill_one_array",
    "system/processes/test_participants.py::test_values_of_all_sizes_from_threads_of_children",
    "system/processes/test_participants.py::test_what_was_read_before_the_lock_is_to_be_read_under_it",
    "system/processes/test_participants.py::test_who_had_to_wait_for_a_lock_sees_what_was_written_under_it",
    "system/processes/test_participants.py::test_workers_fill_one_array[with_executor",
    "system/processes/test_participants.py::test_workers_fill_one_array[with_living_pool",
    "system/processes/test_participants.py::test_workers_fill_one_array[with_pool",
    "system/processes/test_participants.py::test_workers_fill_one_array[with_processes-forkserver",
    "system/processes/test_participants.py::test_workers_fill_one_array[with_processes-spawn",
    "system/processes/test_parts.py::test_transactions_of_several_processes",
    "system/processes/test_readers.py",
    "system/processes/test_reclaiming.py",
    "system/processes/test_stale_arrays.py",
    "system/processes/test_waiting_commits.py",
    "system/processes/test_writers.py::test_disjoint_keys_never_conflict",
    "system/processes/test_writers.py::test_every_increment_counts[2-",
    "system/processes/test_writers.py::test_every_increment_counts[4-50",
    "system/processes/test_writers.py::test_one_of_many_blind_writes_wins",
    "system/remote/",
    "test_blocks.py",
    "threads/test_waiting.py::test_after_an_interrupt_in_an_end_that_waits_the_next_one_comes_about",
    "transactions/test_conflicts.py::test_a_commit_that_comes_just_before_the_lock_is_seen",
    "transactions/test_conflicts.py::test_merged_runs_give_the_same_answers",
    "transactions/test_constraints.py::test_what_is_broken_is_refused_and_what_is_not_is_not",
    "transactions/test_grafts.py::test_as_with_dicts",
    "transactions/test_grafts.py::test_killed_while_it_moves",
    "transactions/test_regions.py::test_a_basic_selection_covers_the_chunks_that_are_written",
    "transactions/test_regions.py::test_any_basic_selection",
    "transactions/test_regions.py::test_append_covers_the_documents_and_what_is_partly_filled",
    "transactions/test_regions.py::test_more_chunks_than_can_be_locked",
)


#: Of the long tests, TXSTORE_LONG_SHARE=2 runs one half, =3 a third, and so on: those that TXSTORE_LONG_SEED draws.
#: Those of ALWAYS run in any share.
ALWAYS = ("tests/test_blocks.py",)
SHARE, SEED = int(os.environ.get("TXSTORE_LONG_SHARE", "1")), os.environ.get("TXSTORE_LONG_SEED", "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left = [], []
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(LONG):
            item.add_marker(pytest.mark.long)
        is_drawn = zlib.crc32((SEED + item.nodeid).encode()) % SHARE == 0 or item.nodeid.startswith(ALWAYS)
        is_left = item.get_closest_marker("long") is not None and not is_drawn
        (left if is_left else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
