"""Bugs to be put into the product, one at a time: syncs and renames that are left out, and checks that are not made.

Each names the workload, and what follows it, in which the harness has to find it. A sync that the harness could not
miss would be one that nobody needs, or one that the harness knows too little to need; those of the first kind are
listed with the reason why. Checks against damage that no crash does are in `tests/system/bad_input`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple
from unittest import mock


class Omitted(NamedTuple):
    """Calls that are not made: those whose site begins like this."""

    site: str
    workload: str
    follow_up: str | None = None  # of other processes, after those of the workload were killed
    killed_after: str = ""  # the call that they were killed after: how its site begins; any

    def __str__(self) -> str:
        return self.site.replace("LocalStorage.", "")


_NAMES = "sync names"
_STORAGE = "LocalStorage.sync_directory < "
_SYNC = "sync .staging/*"

OMITTED = [
    # What makes a repository.
    Omitted(f"{_SYNC}.new < LocalStorage.write_once < Identity.create", "first commit"),
    Omitted(f"{_NAMES} . < {_STORAGE}LocalStorage.write_once < Identity.create", "first commit"),
    Omitted(f"{_NAMES} . < LocalStorage.make_directory < Identity.create", "swept"),
    Omitted(f"{_NAMES} . < {_STORAGE}Identity.create", "first commit", "commit and tag", "rename zarr.json"),
    Omitted("sync zarr.json < LocalStorage.sync_file < Identity.make_durable", "scratch"),
    Omitted("sync format.json < LocalStorage.sync_file < Identity.make_durable", "scratch"),
    Omitted(f"{_NAMES} . < {_STORAGE}Identity.make_durable", "scratch"),
    Omitted(f"{_NAMES} commits < {_STORAGE}Identity.make_durable", "scratch"),
    Omitted(f"{_NAMES} the parent < {_STORAGE}Identity.make_durable", "scratch"),
    # A commit.
    Omitted(f"{_SYNC}.0 < PackWriter.sync < Publisher._sync < Publisher.publish", "first commit"),
    Omitted(f"{_NAMES} commits/main < {_STORAGE}Commits.settle", "first commit"),
    Omitted("sync commits/main/N < LocalStorage.sync_file < Commits._sync_files", "scratch"),
    Omitted("sync packs/*/* < LocalStorage.sync_file < Commits._sync_files", "cooperative scratch"),
    Omitted(f"{_NAMES} packs/* < {_STORAGE}Commits._sync_files", "cooperative scratch"),
    Omitted(f"{_NAMES} packs < {_STORAGE}Commits._sync_files", "cooperative scratch"),
    Omitted(f"{_NAMES} commits/main < {_STORAGE}Commits.make_durable", "tag on scratch"),
    # A copy that nobody has synced.
    Omitted("sync commits/main/N < LocalStorage.sync_file < Commits._sync_all", "copying"),
    Omitted("sync packs/*/* < LocalStorage.sync_file < Commits._sync_all", "copying"),
    Omitted("sync tags/* < LocalStorage.sync_file < Commits._sync_all", "copying"),
    Omitted(f"{_NAMES} packs/* < {_STORAGE}Commits._sync_all", "copying"),
    Omitted(f"{_NAMES} packs < {_STORAGE}Commits._sync_all", "copying"),
    Omitted(f"{_NAMES} tags < {_STORAGE}Commits._sync_all", "copying"),
    # Packs of several processes.
    Omitted(f"{_SYNC}.n < LocalStorage.sync_file < Publisher.prepare", "cooperative"),
    Omitted(f"{_NAMES} packs/* < {_STORAGE}Publisher.prepare", "cooperative"),
    Omitted(f"{_NAMES} packs < {_STORAGE}Publisher.prepare", "named", "resume", "mkdir packs/"),
    # Run packs.
    Omitted(f"{_SYNC}.run < RunPack", "merged aside"),
    Omitted(f"{_NAMES} packs/* < {_STORAGE}RunPack", "merged aside"),
    Omitted(f"{_NAMES} packs < {_STORAGE}RunPack", "merged aside"),
    # Tags.
    Omitted(f"{_SYNC}.new < LocalStorage.write_once < Commits.write_tag", "tags"),
    Omitted(f"{_NAMES} tags < {_STORAGE}LocalStorage.write_once < Commits.write_tag", "tags"),
    Omitted(f"{_NAMES} tags < {_STORAGE}Commits.delete_tag", "vacuumed around"),
    # Branches.
    Omitted(f"{_SYNC}.new < LocalStorage.write_once < BranchNames._write", "branches"),
    Omitted(f"{_NAMES} . < {_STORAGE}BranchNames._write", "branches"),
    Omitted(f"{_NAMES} branches < {_STORAGE}LocalStorage.write_once < BranchNames._write", "branches"),
    Omitted(f"{_NAMES} branches < {_STORAGE}BranchNames.delete", "branches"),
    Omitted(f"{_NAMES} commits/* < {_STORAGE}Commits.settle", "branches"),
    Omitted("rename branches/", "branches"),
    Omitted("sync commits/*/N < LocalStorage.sync_file < Commits._sync_files", "merged scratch"),
    Omitted(f"{_NAMES} commits/* < {_STORAGE}Commits.make_durable", "merged while pending"),
    # Vacuuming.
    Omitted(f"{_NAMES} tags < {_STORAGE}vacuum", "vacuumed around", "sweep", "unlink tags/*"),
    Omitted(f"{_SYNC}.new < LocalStorage.write_once < Commits.write_floor", "vacuumed"),
    Omitted(f"{_NAMES} floor < {_STORAGE}Commits.write_floor", "vacuumed scratch"),
    Omitted(f"{_NAMES} floor/main < {_STORAGE}LocalStorage.write_once < Commits.write_floor", "vacuumed"),
    # Repairing.
    Omitted(f"{_SYNC}.new < Replacer.write_small", "repaired guard"),
    Omitted(f"{_NAMES} . < {_STORAGE}Replacer._put", "repaired guard"),
    Omitted(f"{_NAMES} commits/main < {_STORAGE}Replacer._quarantine", "repaired"),
    Omitted(f"{_NAMES} quarantine < {_STORAGE}Replacer._quarantine", "repaired guard"),
    Omitted(f"{_NAMES} quarantine/commits/main < {_STORAGE}Replacer._quarantine", "repaired"),
    Omitted(f"{_NAMES} . < LocalStorage.make_directory < Replacer._quarantine", "repaired"),
    Omitted(f"{_NAMES} quarantine < LocalStorage.make_directory < Replacer._quarantine", "repaired"),
    Omitted(f"{_NAMES} quarantine/commits < LocalStorage.make_directory < Replacer._quarantine", "repaired"),
    # Transactions with a name.
    Omitted(f"{_SYNC}.new < LocalStorage.write_once < SharedTransaction.publish", "named"),
    Omitted(f"{_SYNC}.new < LocalStorage.write_once < find_or_begin", "named"),
    Omitted(f"{_SYNC}.n < PackWriter.sync < Staging.seal", "named"),
    Omitted(f"{_NAMES} .staging < {_STORAGE}Staging.seal", "named"),
    Omitted(f"{_NAMES} .staging < {_STORAGE}SharedTransaction.seal", "named first"),
    Omitted(f"{_NAMES} .staging < {_STORAGE}SharedTransaction.end < Staging.discard", "named first"),
    Omitted(
        f"{_NAMES} .staging < {_STORAGE}reclaim_staging", "named first", "commit and tag", "unlink .staging/*.sealed"
    ),
    # Renames and links.
    Omitted("rename commits/main/N < LocalStorage.rename_noreplace < Commits.take_slot", "first commit"),
    Omitted("rename format.json", "first commit"),
    Omitted("rename zarr.json", "first commit"),
    Omitted("rename tags/*", "tags"),
    Omitted("rename .staging/*.open < LocalStorage.rename_noreplace < LocalStorage.write_once", "named"),
    Omitted("rename .staging/*.sealed", "named first"),
    Omitted("rename .staging/named-run", "named"),
    Omitted("rename locks/commit", "first commit"),
    Omitted("rename locks/staging", "named"),
    Omitted("link packs/*/* < LocalStorage.link < Publisher.prepare < Committer._publish", "cooperative"),
    Omitted("link packs/*/* < LocalStorage.link < Publisher.prepare < optimize", "optimized"),
    Omitted("link packs/*/* < LocalStorage.link < RunPack", "merged aside"),
    Omitted(
        "rename commits/main/N < LocalStorage.rename_noreplace < Commits.take_slot < Publisher._take_slot"
        " < Publisher.publish < optimize",
        "optimized",
    ),
    Omitted(
        "rename commits/main/N < LocalStorage.rename_noreplace < Commits.take_slot < Publisher._take_slot"
        " < Publisher.publish < vacuum",
        "vacuumed",
    ),
    Omitted("rename floor/main/N", "sleeper"),
    Omitted("rename quarantine/commits/main/N", "repaired"),
    Omitted("replace zarr.json", "repaired guard"),
    Omitted("link quarantine/zarr.json", "repaired guard"),
]

#: Syncs without which nothing that can be seen differs, and why they are made all the same.
_LATER = "the first durable commit syncs it once more (Identity.make_durable)"
_SEAL = "nothing is promised of a part before it is sealed, which syncs the same directory"
_HINT = "a hint is never trusted"
SUPERFLUOUS = {
    f"{_SYNC}.0 < PackWriter.sync < Publisher._sync < Publisher.prepare": "so that less is left inside the lock",
    f"{_NAMES} the parent < LocalStorage.make_directory": _LATER,
    f"{_NAMES} commits < LocalStorage.make_directory": _LATER,
    f"{_NAMES} .staging < {_STORAGE}LocalStorage.write_once < SharedTransaction.publish": _SEAL,
    f"{_NAMES} .staging < {_STORAGE}LocalStorage.write_once < find_or_begin": _SEAL,
    f"{_NAMES} .staging < {_STORAGE}SharedTransaction.end < Staging.settle": "the history tells what was committed",
    f"{_NAMES} floor < LocalStorage.make_directory": "a vacuum syncs `floor` itself: it may be another's",
    f"{_NAMES} commits/main < {_STORAGE}Commits._sync_all": "make_durable syncs it once more",
    f"{_NAMES} . < {_STORAGE}Replacer._quarantine": "only a second name was made, elsewhere",
    f"{_NAMES} heads < {_STORAGE}Replacer": _HINT,
    f"{_NAMES} quarantine/heads < {_STORAGE}Replacer": _HINT,
    f"{_NAMES} floor/* < {_STORAGE}LocalStorage.write_once": "as that of main; nobody looks below the other floors",
    f"{_NAMES} packs < LocalStorage.make_directory": "the committer syncs `packs` itself: it may be another's",
}


class Edit(NamedTuple):
    """A few words of a function that become others."""

    where: str  # module:qualified name
    old: str
    new: str
    workload: str
    follow_up: str | None = None
    killed_after: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.old}"


EDITS = [
    Edit("history.commits:Commits.head", "not above.follows(found)", "False", "overtaken"),
    Edit("history.commits:Commits._break_below", "not stored.follows(below)", "False", "overtaken"),
    Edit("history.commits:Commits._break_below", "header.slot - header.pending", "header.slot", "overtaken"),
    Edit(
        "history.commits:Commits.pending",
        "return max(0, header.slot - max(vouched, self._durable_slot(branch)))",
        "return 0",
        "scratch",
    ),
    Edit("history.commits:Commits._follow_hint", "hint.boot == self.storage.boot() != 0", "True", "overtaken"),
    Edit("history.commits:Commits.is_fit_parent", "parent.header.synced and", "", "scratch"),
    Edit("history.commits:Commits.take_slot", "there.hash != stored.hash", "False", "overtaken"),
    Edit("history.commits:Commits.take_slot", "if there.has_parent_of(stored):", "if True:", "overtaken"),
    Edit(
        "history.commit:Stored.follows",
        "(self.header.parent_id, self.header.parent_hash) == parent",
        "self.header.parent_id == parent[0]",
        "named first",
        "commit and tag",
        "rename commits",
    ),
    Edit(
        "history.slots:Publisher._take_slot",
        "self.commits.write_hint(stored, durable=False)",
        "self.commits.write_hint(stored, durable=True)",
        "overtaken",
    ),
    Edit(
        "transactions.shared:SharedTransaction._take_over",
        "committed = self.find_commit()",
        "committed = None",
        "named",
    ),
    Edit(
        "transactions.shared:SharedTransaction._rename_record",
        "except FileExistsError:",
        "except NotADirectoryError:",
        "links, named",
    ),
    Edit("transactions.shared:Tail._check_head", "or not any(head)", "", "named"),
    Edit(
        "transactions.named:_begin",
        "commits.make_durable(None if record.base is None else commits.at(record.branch, record.base[0]))",
        "commits.identity.make_durable()",
        "named on scratch",
    ),
    Edit(
        "transactions.reclaim:reclaim_staging",
        "is not None or file in doomed",
        "is not None",
        "first commit",
    ),
    # Chunks that are written in part.
    Edit("transactions.staging:Staging.stage_part", "region |= known.own", "region = WHOLE", "parts"),
    Edit("transactions.merges:Merges.put_together", "self._put(", "id(", "parts"),
    Edit("transactions.merges:Merges.merge", "head.get_view(key)", "self._staging.base.get_view(key)", "parts"),
    Edit("transactions.merges:Merges.merge", "change.seq > since", "False", "parts"),
    Edit("transactions.committer:Committer._move_to", "self._append_own_run()", "pass", "parts"),
    Edit(
        "history.slots:Publisher.append_value",
        "self.end = self._frames_end = end",
        "self._frames_end = end",
        "parts",
    ),
    # Vacuuming: what is kept, and in which order it is said that the rest is not.
    Edit("maintenance.vacuum:_Vacuum.run", "self.commits.write_floor(head)", "pass", "late reader"),
    Edit(
        "maintenance.vacuum:_Vacuum.run",
        "self.commits.make_durable(head)  # one that was",
        "pass  # one that was",
        "late tag",
        "sweep",
        "rename commits/main/N < LocalStorage.rename_noreplace < Commits.take_slot < Publisher._take_slot"
        " < Publisher.publish < vacuum",
    ),
    Edit("maintenance.vacuum:_Vacuum._limited", "min([wanted, *self._bases()])", "wanted", "vacuumed around"),
    Edit(
        "maintenance.vacuum:_Vacuum._unreachable",
        "*self._slots_pinned(branch, slots, pinned[branch])",
        "*()",
        "late reader",
    ),
    Edit(
        "maintenance.vacuum:_Vacuum._unreachable",
        "found_slot < lowest and path not in needed.paths",
        "found_slot < lowest",
        "vacuumed around",
    ),
    Edit(
        "maintenance.vacuum:_Vacuum._unreachable",
        "path not in needed.paths and path not in staged",
        "path not in needed.paths",
        "linked",
    ),
    Edit(
        "maintenance.vacuum:_Vacuum._unreachable",
        "with contextlib.suppress(MissingPackError):\n                    needed.add(found)",
        "pass",
        "late reader",
    ),
    Edit(
        "maintenance.reachable:kept_commits",
        "[find_tagged(commits, name) for name in commits.tags()]",
        "[]",
        "vacuumed around",
    ),
    Edit(
        "maintenance.reachable:Reachable.add",
        "self.paths.update(pack.path for pack in self._packs_of(name))",
        "pass",
        "vacuumed",
    ),
    Edit("history.commits:Commits.is_kept", "self._is_held(stored) or", "False and", "vacuumed around"),
    Edit("history.commits:Commits.is_kept", "self.floor(header.branch) <= header.slot", "True", "vacuumed"),
    Edit(
        "history.commits:Commits.head",
        "not self.is_below_floor(branch, -1 if found is None else found.header.slot)",
        "True",
        "vacuumed around",
    ),
    Edit("history.commits:Commits.write_tag", "not self._stays(stored, but_tag=name)", "False", "late tag"),
    Edit("history.slots:Publisher._take_slot", "self._check_floor(stored)", "pass", "sleeper"),
    Edit(
        "history.slots:Publisher.publish_in_line",
        "not self.commits.has(ahead)",
        "False",
        "killed in line",
    ),
    # Run packs: what keeps one that waits, and what may take the place of what.
    Edit(
        "maintenance.reachable:StagedPacks.__contains__",
        "or pack_id in self._runs",
        "",
        "merged aside",
    ),
    Edit(
        "transactions.committer:Committer.contents",
        "(at := index.find_runs(aside.inputs, runs)) is not None",
        "(at := 0) is not None",
        "merged aside",
    ),
    # Branches: what is kept for them.
    Edit("history.commits:Commits.create_branch", "self.ensure_durable(stored)", "pass", "branch on scratch"),
    Edit("transactions.committer:Committer.run", "self._make_durable(stored)", "pass", "merged scratch"),
    Edit("transactions.committer:Committer.run", "self._make_durable(stored)", "pass", "merged while pending"),
    Edit(
        "maintenance.reachable:kept_commits",
        "for stored in (*tagged, *begun, *there):",
        "for stored in tagged:",
        "branches vacuumed",
    ),
    Edit(
        "maintenance.reachable:kept_commits",
        "living = living_branches(commits)",
        'living = ["main"]',
        "branches vacuumed",
    ),
    Edit("history.slots:Publisher._check_floor", "self.commits.give_back(stored)", "pass", "sleeper"),
    Edit(
        "maintenance.optimize:_Optimizer.contents",
        "(at := index.find_runs(self.inputs, runs)) is not None",
        "(at := 0) is not None",
        "housekeeping 1",
    ),
    Edit("maintenance.verify:Verifier._check_hint", "or hint.slot < floor", "", "vacuumed around"),
    Edit("history.commits:Commits.make_durable", "self.identity.create(durable=True)", "pass", "copied, tidied"),
    Edit("maintenance.vacuum:_Vacuum.run", "self.commits.identity.create(durable=True)", "pass", "copied, vacuumed"),
    Edit("maintenance.repair:verify_and_repair", "in names.DIRECTORIES:", "in ():", "repaired"),
    Edit("history.identity:Identity._why_not_found", "not self._is_guarded()", "True", "first commit"),
]


@contextlib.contextmanager
def edited(edit: Edit) -> Iterator[None]:
    """Let a function of the product be another one."""
    name, _, qualified = edit.where.partition(":")
    module = importlib.import_module(f"txstore.{name}")
    owner, _, attribute = qualified.rpartition(".")
    holder = getattr(module, owner) if owner else module
    found = inspect.getattr_static(holder, attribute)
    source = textwrap.dedent(inspect.getsource(getattr(holder, attribute)))
    if source.count(edit.old) < 1:
        raise LookupError(f"{edit.where} does not say {edit.old!r} any more: bring the table up to date")
    made: dict[str, object] = {}
    exec(compile(source.replace(edit.old, edit.new), f"<edited {edit.where}>", "exec"), vars(module), made)
    function = made[attribute]
    if isinstance(found, classmethod | staticmethod):
        function = type(found)(function.__func__)
    # A function is known by name to the modules that have imported it, too.
    holders = [holder] if owner else [each for each in _modules() if vars(each).get(attribute) is found]
    with contextlib.ExitStack() as stack:
        for each in holders:
            stack.enter_context(mock.patch.object(each, attribute, function))
        yield


def _modules() -> list[ModuleType]:
    return [module for name, module in list(sys.modules.items()) if name.startswith("txstore.")]
