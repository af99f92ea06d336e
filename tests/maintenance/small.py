"""A small repository that has everything: own and merged runs, a data pack, a compaction output, tombstones, a prefix
tombstone, a tag.

And chunks that were written in part, and merged: of two processes, beside another commit, and until nothing was left.
"""

import multiprocessing
from pathlib import Path

import zarr

import txstore
from tests.tools.compaction_outputs import listed
from tests.tools.inside import stored_commit
from tests.tools.members import join_in_this_process
from tests.tools.parts import write_part

Contents = list[dict[str, bytes]]


def _stage(store: txstore.TxStore) -> None:
    store["shared/c/1"] = b"by another process" * 3


def build(path: Path) -> Contents:
    """Write it; return what each commit holds."""
    repo = txstore.Repository(path)
    contents: Contents = []

    def committed() -> None:
        contents.append({key: bytes(value) for key, value in repo.mapping().items()})

    with repo.transaction("first") as store:
        store["a/zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
        store["a/c/0"] = b"zero"
        store["a/c/1"] = b"one" * 400  # aligned, with padding before it
        options = {"shape": (32,), "chunks": (16,), "dtype": "u1", "compressors": None}
        zarr.create_array(store, name="p", **options)[:] = 97
    committed()
    with repo.transaction("second") as store:
        store["a/c/0"] = b"nought"
        store["b/c/0"] = b""
    committed()
    repo.tags["v1"] = 1
    with repo.transaction("of two processes") as store:
        store["shared/c/0"] = b"mine"
        store.mapping.lifecycle.share()
        others = [join_in_this_process(repo, store.mapping.staging.record.id) for _ in range(2)]
        for number, other in enumerate(others):
            write_part(other, "p/c/0", slice(4 * number, 4 * number + 3), 65 + number)
            write_part(other, "p/c/1", slice(8 * number, 8 * number + 8), 0)
            other.lifecycle.seal()
            other.staging.part.close()
            other.lifecycle.end()
        process = multiprocessing.get_context("spawn").Process(target=_stage, args=(store,))
        process.start()
        process.join(60)
        assert process.exitcode == 0
    committed()
    with repo.transaction("delete") as store:
        del store["b/c/0"]
        store.mapping.delete_dir("shared")
        store["d"] = b"d"
    committed()
    last = repo.begin(message="last")
    write_part(last, "p/c/0", slice(8, 10), 70)
    with listed(), repo.transaction("fifth", properties={"n": 5}) as store:
        store["e"] = b"e" * 100
        write_part(store.mapping, "p/c/0", slice(11, 12), 71)
    committed()
    last["a/c/2"] = b"two"
    last.commit()
    committed()
    assert "p/c/1" not in contents[2]
    assert contents[-1]["p/c/0"] == b"AAAaBBBaFFaGaaaa"
    headers = [stored_commit(repo, version).header for version in range(6)]  # type: ignore[union-attr]
    assert [len(header.compaction_outputs) for header in headers] == [0, 0, 0, 0, 1, 1]
    assert repo.verify().faults == []
    return contents
