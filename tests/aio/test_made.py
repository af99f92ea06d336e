"""The asynchronous face is the synchronous one: made from it, up to date, with the same methods and parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import txstore
from tests.aio import make
from txstore import aio
from txstore.history.branches import Branches


def test_the_file_is_up_to_date() -> None:
    assert make.MADE.read_text(encoding="utf-8") == make.source(), "run `make aio`"


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


PAIRS = [(txstore.Repository, aio.AsyncRepository, public(txstore.Repository))]
PAIRS += [(txstore.TxStore, aio.AsyncTransaction, make.OF_A_TRANSACTION)]
PAIRS += [(Branches, aio.AsyncBranches, public(Branches))]


@pytest.mark.parametrize(
    ("kind", "face", "name"), [(kind, face, name) for kind, face, names in PAIRS for name in sorted(names)]
)
def test_a_method_has_the_parameters_of_the_synchronous_one(kind: type, face: type, name: str) -> None:
    there, here = vars(kind)[name], getattr(face, name)
    if isinstance(there, property):
        assert isinstance(here, property) or parameters(here) == parameters(there.fget)
    else:
        assert parameters(here) == parameters(there)
    assert inspect.getdoc(here).partition("\n")[0] == inspect.getdoc(there).partition("\n")[0]


def test_a_repository_is_opened_with_the_same_parameters() -> None:
    assert parameters(aio.open) == parameters(txstore.Repository.__init__)[1:]


def test_what_a_store_has_and_a_transaction_not_is_for_zarr_or_left_out_on_purpose() -> None:
    # `lock` belongs to the thread that enters it, and `cursors` are moved by feeds, which take the store; the others
    # make stores, which `AsyncRepository` does, or compare them.
    left = public(txstore.TxStore) - make.OF_A_TRANSACTION
    assert left == {"at", "at_base", "begin", "cursors", "is_in_transaction_of", "joining", "lock", "with_read_only"}
