"""Commits in one line: each function makes one; `options` are those of `Repository.transaction`."""

from collections.abc import Callable, Mapping
from typing import Any

import zarr

import txstore


def commit(repo: txstore.Repository, *steps: Callable[[txstore.TxStore], object], **options: Any) -> None:
    with repo.transaction(**options) as store:
        for step in steps:
            step(store)


def set_keys(repo: txstore.Repository, values: Mapping[str, bytes], message: str | None = None, **options: Any) -> None:
    with repo.begin(message, **options) as mapping:
        mapping.update(values)


def create_array(repo: txstore.Repository, name: str, *, branch: str = "main", **options: Any) -> None:
    """`options` are those of `zarr.create_array`."""
    with repo.transaction(branch=branch) as store:
        zarr.create_array(store, name=name, **options)


def write_array(repo: txstore.Repository, path: str, where: Any, value: Any, **options: Any) -> None:
    with repo.transaction(**options) as store:
        zarr.open_array(store, path=path)[where] = value
