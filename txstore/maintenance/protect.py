"""Moves a repository beside its path and leaves a link there: `shutil.rmtree` refuses to follow the link.

`data.tx` becomes `data.tx.d`, and `data.tx` a link to it. zarr's `mode="w"` calls `shutil.rmtree` on the path, which
then raises an error before it deletes anything, in any process. Each file still has only one name, so the rest of the
repository need not know of the link. The link does not protect paths below it.

Order: the directory is moved, then the link is made. After a crash in between, the directory is beside its path, where
the next call finds it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass

from fsspec.core import split_protocol

from txstore.errors import RepositoryNotFoundError
from txstore.format import names
from txstore.history.opening import is_repository, open_commits, open_storage
from txstore.storage.local import sync_directory
from txstore.storage.objects.urls import public


@dataclass(frozen=True, slots=True)
class Protected:
    """Where a repository is. `aside` is the new path of anything that was in the place of the link; None if nothing."""

    link: str
    directory: str
    aside: str | None = None


def protect(path: str | os.PathLike[str]) -> Protected:
    """Protect a local repository, or put its link back; if the path already is a link to one, do nothing.

    Open handles raise an error afterwards: open the repository again. Raises `FileExistsError` if there are two.
    """
    protocol, place = split_protocol(os.fspath(path))
    if protocol not in (None, "file", "local"):
        shown = public(os.fspath(path))
        raise ValueError(f"{shown}: only a repository on a disk can be protected; let the bucket keep old versions")
    link = os.path.abspath(os.path.expanduser(place))
    directory = link + names.BESIDE
    is_there, is_beside = is_repository(link), is_repository(directory)
    above = link.removesuffix(names.BESIDE)
    if is_there and above != link and os.path.islink(above) and os.path.samefile(above, link):
        return Protected(above, link)
    if is_there and os.path.islink(link):
        return Protected(link, os.path.realpath(link))
    if is_there and os.path.lexists(directory):
        raise FileExistsError(errno.EEXIST, f"this is in the way of {link}: look what it is, and move it", directory)
    if not is_there and not is_beside:
        open_commits(open_storage(link)).identity.exists()  # its error says what else is there
        raise RepositoryNotFoundError(link)
    aside = None if is_there or not os.path.lexists(link) else f"{link}.aside-{os.urandom(4).hex()}"
    moved = directory if is_there else aside
    if moved is not None:
        os.rename(link, moved)
    try:
        os.symlink(os.path.basename(directory), link)
    except OSError:  # the file system has no links, or another process created something there
        if moved is not None:
            with contextlib.suppress(OSError):
                os.rename(moved, link)
        raise
    sync_directory(os.path.dirname(link))
    return Protected(link, directory, aside)
