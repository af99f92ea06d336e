"""Files of a web server: any that answers GET. It may list no names, and may deny what is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from txstore.format import names
from txstore.storage.objects.backend import Objects
from txstore.storage.objects.errors import NoListsError
from txstore.storage.objects.plain import PlainBackend

T = TypeVar("T")


class WebBackend(PlainBackend):
    """A web server. Where a repository is, it is found out whether the server lists its names: HTTP has no lists."""

    def __init__(self, filesystem: Any, root: str) -> None:
        super().__init__(filesystem, root)
        self._holds_repository = False  # `format.json` was read
        self._lists = False  # the server was seen to list names

    def get(self, path: str) -> bytes:
        content = self._unless_denied(path, lambda: super(WebBackend, self).get(path))
        self._holds_repository |= path == names.FORMAT
        return content

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self._unless_denied(path, lambda: super(WebBackend, self).get_range(path, offset, length))

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._unless_denied(path, lambda: super(WebBackend, self).get_ranges(path, ranges))

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        return self._unless_denied(path, lambda: super(WebBackend, self).get_tail(path, length))

    def info(self, path: str) -> dict[str, Any]:
        try:
            return super().info(path)
        except FileNotFoundError as error:
            # fsspec says so whatever has failed: the cause tells whether there is no such file, or no answer.
            raise error.__cause__ or error from None

    def _unless_denied(self, path: str, read: Callable[[], T]) -> T:
        """Read, and take what is denied for missing where `format.json` may be read: format.md, "Without lists"."""
        from aiohttp import ClientError, ClientResponseError

        try:
            return read()
        except ClientResponseError as error:
            if error.status != 403 or path == names.FORMAT:
                raise
            denied = error
        try:
            super().get(names.FORMAT)
        except (ClientError, OSError):
            raise denied from None
        raise FileNotFoundError(path)

    def list(self, directory: str) -> Objects:
        found = self._links(directory)
        if self._holds_repository and not self._lists:
            self._lists = any(each.name == names.FORMAT for each in (self._links("") if directory else found))
            if not self._lists:
                raise NoListsError
        return found

    def _links(self, directory: str) -> Objects:
        """Return what the page of a directory leads to: none where there is no page, which many servers deny."""
        from aiohttp import ClientResponseError

        try:
            return super().list(directory)
        except ClientResponseError as error:
            if error.status in (401, 403, 405, 410):
                return []
            raise
