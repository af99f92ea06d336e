"""zarr's own suite for stores, unmodified."""

from typing import Any

import pytest
from zarr.core.buffer import Buffer, cpu
from zarr.testing.store import StoreTests

import txstore
from txstore.store import TxStore

# The suite never commits.
pytestmark = pytest.mark.filterwarnings("ignore::txstore.UncommittedChangesWarning")


class TestTxStore(StoreTests[TxStore, cpu.Buffer]):
    store_cls = TxStore
    buffer_cls = cpu.Buffer

    async def set(self, store: TxStore, key: str, value: Buffer) -> None:
        store.mapping[key] = value.to_bytes()

    async def get(self, store: TxStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes(store.mapping[key])

    @pytest.fixture(params=["no repository yet", "emptied by a commit"])
    def store_kwargs(self, repo: txstore.Repository, request: pytest.FixtureRequest) -> dict[str, Any]:
        if request.param == "emptied by a commit":
            with repo.begin() as transaction:
                transaction.update({"zarr.json": b"{}", "foo/c/0": b"\1"})
            with repo.begin() as transaction:
                transaction.clear()
        return {"url_or_repository": repo.url}

    @pytest.fixture
    def open_kwargs(self, repo: txstore.Repository, store_kwargs: dict[str, Any]) -> dict[str, Any]:
        repo.transaction(name="job").rollback()  # some are opened to read: there must be a repository
        return store_kwargs

    def test_store_repr(self, store: TxStore) -> None:
        assert repr(store) == f"<TxStore {store.url} {store.base or '(no commit)'}>"

    def test_store_supports_writes(self, store: TxStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: TxStore) -> None:
        assert store.supports_listing
