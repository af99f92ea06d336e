"""Exceptions go through pickle: a pool of workers hands them back that way, and hangs on one that can't."""

import copy
import pickle
import re
import traceback
from datetime import UTC, datetime
from pathlib import Path

import pytest

from txstore import errors
from txstore.merging.merge_conflicts import Conflict

EXAMPLES = [
    errors.ConflictError(["a/c/0"], reason="because", base=1, head=2),
    errors.LabelConflictError({"time": [1, 2]}, ["time"], shown="time 1, 2", base=1, head=2),
    errors.MergeConflictError([Conflict("a", "elements", "a/c/0", (slice(0, 2),))]),
    errors.NoCommonAncestorError("main@7", "dev@9"),
    errors.ConstraintError([errors.Violation("aligned", "a", "its first dimension is 1, and that of 'b' 2")]),
    errors.ViewError("pyramid", "there is no array 'image/0'"),
    errors.StaleArrayError("a", reason="it changed"),
    errors.MisalignedError(relabelled=[("level", "a")]),
    errors.LockTimeoutError(["a/c/0"], "process 7"),
    errors.LockRegionError("a", "too much"),
    errors.LocksUnavailableError("/data.tx", "none here"),
    errors.LocksLostError(["a/c/0"]),
    errors.ParticipantLostError(["process 7 on host"], ["a/c/0"]),
    errors.CommitUnknownError("0" * 32, reason="the answer was lost"),
    errors.CorruptionError("packs/00/00", reason="a wrong checksum", offset=64, key="a/c/0"),
    errors.WrongFileTypeError("packs/00", found="a symbolic link", wanted="a directory"),
    errors.SnapshotExpiredError("main@7"),
    errors.ErasedError("a/c/0", "ana@lab", datetime(2026, 1, 1, tzinfo=UTC)),
    errors.ErasureError(["a"], "b has the same values"),
    errors.ErasureTimeoutError(["a"], ["a process reads main@7"]),
    errors.BackupError("/backup.tx", "it holds something else"),
    errors.BackupErasureError("/backup.tx", ["erasure of a by ana"], 7),
    errors.BarePathError("/data.tx"),
    errors.SchemaError("/data.tx", ["there is no array at 'x'"]),
    errors.CheckoutError("/out.zarr", "it holds something"),
    errors.CodecRefusedError("a", ["pickle"]),
    errors.SourceError("/old.zarr", "nothing is here"),
    errors.SourceChangedError("s3://bucket/x.nc", "9 bytes, version 1", "it is 9 bytes, version 2"),
    errors.ExportError("/new.zarr", "it holds something"),
    errors.PublishError("/plain.zarr", "it holds something"),
    errors.RepositoryNotFoundError("/data.tx", creatable=True),
    errors.CommitNotFoundError("version 7", advice="look"),
    errors.CommitTimeoutError("/data.tx", "locks/commit", "process 7 of ana@lab", 5.0),
    errors.NodeNotFoundError("a"),
    errors.FeedNotFoundError("thumbnails", "main"),
    errors.FeedMovedError("thumbnails", "it is at version 7 now"),
    errors.FeedExpiredError("thumbnails", "main@7 has expired"),
    errors.UnsupportedFormatError("format.json", found="2", supported="1"),
    errors.TransactionStateError("it has ended", state="ended"),
    errors.KeyFormatError("a key is not empty"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
def test_an_exception_goes_through_pickle(error, again):
    found = again(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_no_exception_reads_as_a_missing_key():
    """zarr, fsspec and xarray go on without a key if one of these is raised, and zarr 2 if it is any `OSError`."""
    missing = (KeyError, FileNotFoundError, NotADirectoryError, IsADirectoryError)
    found = {type(error) for error in EXAMPLES if isinstance(error, missing)}
    assert found == {errors.NodeNotFoundError, errors.FeedNotFoundError}  # which nothing that reads keys raises


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_exception_says_where_its_usual_causes_stand(error):
    page = (Path(__file__).parents[1] / "docs/reference/errors.md").read_text(encoding="utf-8")
    place = traceback.format_exception(error)[-1].splitlines()[-1].partition("reference/errors#")[2]
    assert place in {heading.lower() for heading in re.findall(r"^## (\w+)$", page, re.M)}


def test_all_exceptions_are_here():
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TxStoreError)}
    assert kinds - {errors.TxStoreError} == {type(error) for error in EXAMPLES}
