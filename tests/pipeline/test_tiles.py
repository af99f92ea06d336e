"""A few rounds of `make histories WHAT=tiles`."""

from tests.pipeline.tiles import by_processes, by_threads


def test_nothing_is_lost_by_threads() -> None:
    assert by_threads("txstore", 4) == 0


def test_nothing_is_lost_by_processes_and_transactions() -> None:
    shared, apart, wrong, _ = by_processes(4)
    assert (shared, apart, wrong) == (0, 0, 0)
