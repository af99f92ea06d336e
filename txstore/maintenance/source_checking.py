"""Whether the files outside of a repository, in which values lie, are the same still: a look at each, none is read."""

from __future__ import annotations

from txstore.errors import CorruptionError, SourceError, TxStoreError
from txstore.format import packfile
from txstore.history.commit import MAIN
from txstore.history.opening import open_commits
from txstore.history.ranged_packs import open_packs
from txstore.history.snapshot import Snapshot
from txstore.maintenance.report import Fault
from txstore.storage.foreign import FileVersion
from txstore.storage.interface import Storage
from txstore.storage.request_threads import in_parallel
from txstore.storage.sources import Sources


def check_sources(storage: Storage, sources: Sources) -> list[Fault]:
    """Return which of the files that the newest commit refers to have changed, or can't be looked at.

    What is damaged in the repository itself is passed over: `verify` tells.
    """
    files: dict[FileVersion, str] = {}  # with the first key that lies in each
    try:
        stored = open_commits(storage).head(MAIN)
        runs = Snapshot(stored, open_packs(storage), storage.url).runs
        for found in runs.scan_all():
            if found.kind == packfile.REF_FOREIGN:
                key = found.key.decode(errors="backslashreplace")
                try:
                    files.setdefault(runs.foreign(key, found).file, key)
                except CorruptionError:
                    continue
    except (TxStoreError, OSError):
        pass  # it can't be read any further

    def reason_of(file: FileVersion) -> str | None:
        try:
            now = sources.look(file.url)
        except (FileNotFoundError, NotADirectoryError):
            return f"there is no such file; values lie in it as it was: {file.shown}"
        except SourceError as error:
            return error.reason
        except OSError as error:
            return f"it can't be looked at: {error}"
        return None if now == file else f"values lie in it as it was, {file.shown}, and it has changed: {now.shown}"

    reasons = zip(files.items(), in_parallel(reason_of, files), strict=True)
    return [Fault(file.url, reason, key=key, part="source") for (file, key), reason in reasons if reason]
