"""Keeps zarr's own stores in this process from deleting a repository that a caller names by its bare path.

`zarr.open("data.tx", mode="w")`, `overwrite=True` and `ds.to_zarr("data.tx", mode="w")` make the store of the path
delete everything there before they read any of it. From `import txstore` on, the deleting methods first look for a
repository. If nothing would be deleted, that costs one look at the disk. On an object store it costs one request, and
only if the store is to be deleted from its root on, or a name like that of a part of a repository.

zarr may be imported before or after. If it is imported after, an import finder patches it and then removes itself. This
module is part of `import txstore`, so it imports only when needed what the check needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from txstore.errors import BarePathError, warn
from txstore.format import names

if TYPE_CHECKING:
    from importlib.abc import Loader  # which takes longer to import than all of this

_STORES = "zarr.storage"
#: Stores of zarr 3, and one of zarr 2, each with its methods that delete many keys. The first argument is a path; if
#: it is missing, the method deletes all keys.
_DELETING = {
    "LocalStore": ("delete_dir", "clear"),
    "FsspecStore": ("delete_dir", "clear"),
    "ObjectStore": ("delete_dir",),  # its `clear` calls this
    "DirectoryStore": ("rmdir", "clear"),
}


def keep_repositories() -> None:
    """Make zarr's stores look before they delete: now if zarr is imported, else when it is imported."""
    if os.environ.get("TXSTORE_GUARD", "on").lower() in ("off", "0", "false", "no"):
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)  # before the check: another thread may be about to import zarr
    if _STORES in sys.modules and finder.retire():
        import zarr.storage  # by a thread that is at it

        _change(zarr.storage)


class _Finder:
    """Finds one module in its usual place, and patches it when it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _STORES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None and self.retire():
            spec.loader = cast("Loader", _Changing(spec.loader))
        return spec

    def retire(self) -> bool:
        """Remove this finder. Return True to one caller, which patches the module, and False to all others."""
        try:
            sys.meta_path.remove(self)
        except ValueError:
            return False
        return True


class _Changing:
    """Loads and patches a module by its own loader, which stays the module's loader."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _change(module)


def _change(stores: ModuleType) -> None:
    for name, methods in _DELETING.items():
        kind = getattr(stores, name, None)
        for method in methods if kind is not None else ():
            setattr(kind, method, _looking_first(getattr(kind, method), name))

    local = getattr(stores, "LocalStore", None)
    if local is not None:
        local.__init__ = _not_by_url(local.__init__)


def _not_by_url(set_up: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that names a repository, and refuses a `txstore:` URL, which would become a directory."""

    @wraps(set_up)
    def of_a_directory(self: Any, root: Any, *args: Any, **kwargs: Any) -> None:
        if str(root).startswith("txstore:"):
            raise ValueError(
                f"{root} is a TxStore URL, and the tool that was given it takes it for a directory. Pass it a store: "
                "repo.snapshot(), or that of `with repo.transaction() as store:`"
            )
        if isinstance(root, str | os.PathLike) and names.is_repository(root):
            _warn_of(str(root))
        set_up(self, root, *args, **kwargs)

    return of_a_directory


@cache  # zarr makes several stores of one path
def _warn_of(root: str) -> None:
    told = "a TxStore repository: use xr.open_dataset(path, engine='txstore'), or zarr.open(txstore.TxStore(path))"
    warn(f"{root} is {told}")


def _looking_first(delete: Callable[..., Any], store: str) -> Callable[..., Any]:
    """Return a method that raises `BarePathError` where `delete` would delete a repository, or a part of one."""

    def path_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return next((path for path in (*args, *kwargs.values()) if path), "")

    @wraps(delete)
    def of_zarr_2(self: Any, *args: Any, **kwargs: Any) -> Any:
        _look(self.path, path_in(args, kwargs))
        return delete(self, *args, **kwargs)

    @wraps(delete)
    async def on_disk(self: Any, *args: Any, **kwargs: Any) -> Any:
        _look(self.root, path_in(args, kwargs))
        return await delete(self, *args, **kwargs)

    @wraps(delete)
    async def on_objects(self: Any, *args: Any, **kwargs: Any) -> Any:
        await _ask(self, path_in(args, kwargs))
        return await delete(self, *args, **kwargs)

    if store == "DirectoryStore":
        return of_zarr_2
    return on_disk if store == "LocalStore" else on_objects


def _look(root: str | os.PathLike[str], prefix: str) -> None:
    path = os.path.abspath(os.path.join(root, prefix))
    if not os.path.isdir(path):
        return
    above = ""
    while path != above:
        if names.is_repository(path):
            raise BarePathError(path)
        path, above = os.path.dirname(path), path


async def _ask(store: Any, prefix: str) -> None:
    from zarr.buffer import default_buffer_prototype

    from txstore.format import encoding, records

    if prefix and prefix.partition("/")[0] not in names.TOP:
        return
    content = await store.get(names.FORMAT, default_buffer_prototype())
    if content is None:
        return
    try:
        records.RepositoryFormat.decode(content.to_bytes())
    except encoding.NewerFormatError:
        pass
    except encoding.MalformedError:
        return
    url = store.fs.unstrip_protocol(store.path) if hasattr(store, "fs") else str(store.store)
    raise BarePathError(url)
