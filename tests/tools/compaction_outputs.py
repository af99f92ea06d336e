"""Commits that list a pack with a compacted run: the format allows it, and no commit of TxStore makes one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import txstore
from tests.tools.inside import commits_of
from txstore.format import names, packfile
from txstore.format.commitfile import DataPack
from txstore.format.packfile import PackName
from txstore.history.new_commit import Contents
from txstore.history.snapshot import Snapshot
from txstore.segments import compaction
from txstore.segments.runs import find_runs, name_run
from txstore.transactions.draft import Draft


@contextmanager
def listed(newer: int = 0) -> Iterator[None]:
    """Let commits list the runs of their parent as one, in a pack of its own, but for so many newer ones."""
    contents = Draft.contents

    def with_output(self: Draft, head: Snapshot) -> Contents:
        found, inputs = contents(self, head), tuple(head.run_names[newer:])
        runs = list(found.runs)
        at = find_runs(inputs, runs)
        if len(inputs) > 1 and at is not None:
            storage, pack = self.commits.storage, PackName(os.urandom(16))
            section = head.runs_named(inputs).merge(len(inputs), storage)
            length = len(memoryview(section))
            offset, end = packfile.compaction_output_layout(length)
            begin = packfile.encode_compaction_output(pack.id, self.commits.identity.id, length)
            storage.make_directory(names.data_pack_directory(pack.id), durable=True)
            storage.write_once(pack.path, begin + bytes(section) + bytes(end - offset - length), durable=True)
            runs[at : at + len(inputs)] = [name_run(section, 0, offset).inside(pack)]
            self.file.packs = [*self.file.packs, (DataPack(pack, end), pack.path)]
            found = found._replace(runs=tuple(runs))
        return found

    with (
        mock.patch.object(Draft, "contents", with_output),
        mock.patch.object(compaction, "merged_by_commit", lambda runs, *_: runs[:newer] if newer > 1 else ()),
    ):
        yield


def outputs_of(repo: txstore.Repository, branch: str = "main") -> list[str]:
    """Return the paths of the packs with a compacted run that the head lists."""
    head = commits_of(repo).head(repo.engine.branch(branch))
    return [] if head is None else sorted(pack.path for pack in head.header.compaction_outputs)
