"""The parameters of `txstore:` URLs."""

import pytest

import txstore
from txstore.history.opening import locate
from txstore.history.url_parameters import Parameters, split_parameters

SHARED = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("url", "place", "parameters"),
    [
        ("txstore::data.tx", "txstore::data.tx", Parameters()),
        ("txstore::data.tx?branch=dev", "txstore::data.tx", Parameters(branch="dev")),
        ("txstore::data.tx/?branch=dev", "txstore::data.tx/", Parameters(branch="dev")),
        ("s3://bucket/data.tx?tag=v1", "s3://bucket/data.tx", Parameters(tag="v1")),
        ("/data.tx/a/b?at=7", "/data.tx/a/b", Parameters(at="7")),
        ("/data.tx?at=7/a/b", "/data.tx/a/b", Parameters(at="7")),
        ("/data.tx/?at=7/a", "/data.tx/a", Parameters(at="7")),
        ("/d?branch=dev&commit=on-close", "/d", Parameters(branch="dev", commit="on-close")),
        ("/d?transaction=run-17&message=a%20%26%20b", "/d", Parameters(transaction="run-17", message="a & b")),
        (f"/d?shared={SHARED}", "/d", Parameters(shared=SHARED)),
        ("/what?.tx/a", "/what?.tx/a", Parameters()),
        ("/what?.tx/a?tag=v", "/what?.tx/a", Parameters(tag="v")),
    ],
)
def test_what_a_url_says(url: str, place: str, parameters: Parameters) -> None:
    assert split_parameters(url) == (place, parameters)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("brunch=dev", "no such parameter, only branch, at"),
        ("branch=dev&branch=main", "one value"),
        ("branch=", "one value"),
        ("branch=dev&tag", "one value|no such parameter"),
        ("at=1&tag=v1", "one of them"),
        ("transaction=a&commit=on-close", "one of them"),
        ("at=1&commit=on-close", "names a commit to read"),
        ("commit=always", "only value is on-close"),
        ("shared=12", "as it is"),
        (f"shared={SHARED}&branch=dev", "as it is"),
        (f"shared={SHARED}&message=a", "as it is"),
    ],
)
def test_what_is_wrong_is_said(query: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        split_parameters(f"txstore::data.tx?{query}")


def test_versions_are_numbers() -> None:
    def reads(query: str) -> tuple[object, ...]:
        return split_parameters(f"/d?{query}")[1].reads

    assert reads("branch=dev&at=-1") == ("dev", -1, None)
    assert reads("at=HEAD~1") == ("main", "HEAD~1", None)
    assert reads("at=2026-11-28T10:00:00Z") == ("main", "2026-11-28T10:00:00Z", None)
    assert reads("tag=v1") == ("main", None, "v1")


def test_repositories_and_stores_take_arguments(repo: txstore.Repository) -> None:
    with repo.transaction() as store:
        store["a"] = b"1"
    for open_it in (txstore.Repository, txstore.TxStore, locate):
        with pytest.raises(ValueError, match=r"branch=dev.*pass it as arguments"):
            open_it(f"txstore::{repo.url}?branch=dev")
