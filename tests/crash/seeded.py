"""Bugs to be put into the product, one at a time: syncs and renames that are left out, and checks that are not made.

Each names the workload, and what follows it, in which the harness has to find it. A sync that the harness could not
miss would be one that nobody needs, or one that the harness knows too little to need; those of the first kind are
listed with the reason why. Checks against damage that no crash does are in `tests/system/bad_input`.
"""

import __future__

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
    """Calls that are not made: those whose site begins like this. `txstore/steps.py` has what it is made of."""

    site: str
    workload: str
    follow_up: str | None = None  # of other processes, after those of the workload were killed
    killed_after: str = ""  # the call that they were killed after: how its site begins; any

    def __str__(self) -> str:
        return self.site


_NAMES = "sync names"
_SYNC = "sync .staging/*"

OMITTED = [
    # What makes a repository.
    Omitted(f"{_SYNC}.new < write once < create repository", "first commit"),
    Omitted(f"{_NAMES} . < write once < create repository", "first commit"),
    Omitted(f"{_NAMES} . < make directory < create repository", "swept"),
    Omitted(f"{_NAMES} . < create repository", "first commit", "commit and tag", "rename zarr.json"),
    Omitted("sync zarr.json < sync repository", "scratch"),
    Omitted("sync format.json < sync repository", "scratch"),
    Omitted(f"{_NAMES} . < sync repository", "scratch"),
    Omitted(f"{_NAMES} commits < sync repository", "scratch"),
    Omitted(f"{_NAMES} the parent < sync repository", "scratch"),
    # A commit.
    Omitted(f"{_SYNC}.0 < publish", "first commit"),
    Omitted(f"{_NAMES} commits/main < settle commit", "first commit"),
    Omitted("sync commits/main/N < sync commit", "scratch"),
    Omitted("sync packs/*/* < sync commit", "cooperative scratch"),
    Omitted(f"{_NAMES} packs/* < sync commit", "cooperative scratch"),
    Omitted(f"{_NAMES} packs < sync commit", "cooperative scratch"),
    Omitted(f"{_NAMES} commits/main < make durable", "tag on scratch"),
    # A copy that nobody has synced.
    Omitted("sync commits/main/N < sync copy", "copying"),
    Omitted("sync packs/*/* < sync copy", "copying"),
    Omitted("sync tags/* < sync copy", "copying"),
    Omitted(f"{_NAMES} packs/* < sync copy", "copying"),
    Omitted(f"{_NAMES} packs < sync copy", "copying"),
    Omitted(f"{_NAMES} tags < sync copy", "copying"),
    # Packs of several processes.
    Omitted(f"{_SYNC}.n < prepare", "cooperative"),
    Omitted(f"{_NAMES} packs/* < prepare", "cooperative"),
    Omitted(f"{_NAMES} packs < prepare", "named", "resume", "mkdir packs/"),
    # Tags.
    Omitted(f"{_SYNC}.new < write once < write tag", "tags"),
    Omitted(f"{_NAMES} tags < write once < write tag", "tags"),
    Omitted(f"{_NAMES} tags < delete tag", "vacuumed around"),
    # Records of operations.
    Omitted(f"{_SYNC}.new < record operation", "tags"),
    Omitted(f"{_NAMES} operations < record operation", "tags"),
    Omitted(f"{_NAMES} . < make directory < record operation", "optimized"),
    Omitted("sync operations/* < sync copy", "copying"),
    Omitted(f"{_NAMES} operations < sync copy", "copying"),
    # Branches.
    Omitted(f"{_SYNC}.new < write once < write branch", "branches"),
    Omitted(f"{_NAMES} . < write branch", "branches"),
    Omitted(f"{_NAMES} branches < write once < write branch", "branches"),
    Omitted(f"{_NAMES} branches < delete branch", "branches"),
    Omitted(f"{_NAMES} commits/* < settle commit", "branches"),
    Omitted("rename branches/", "branches"),
    Omitted("sync commits/*/N < sync commit", "merged scratch"),
    Omitted(f"{_NAMES} commits/* < make durable", "merged while pending"),
    # Vacuuming.
    Omitted(f"{_NAMES} tags < vacuum", "vacuumed around", "sweep", "unlink tags/*"),
    Omitted(f"{_SYNC}.new < write once < write oldest kept version", "vacuumed"),
    Omitted(f"{_NAMES} oldest_kept < write oldest kept version", "vacuumed scratch"),
    Omitted(f"{_NAMES} oldest_kept/main < write once < write oldest kept version", "vacuumed"),
    # Repairing.
    Omitted(f"{_SYNC}.new < replace: put", "repaired guard"),
    Omitted(f"{_NAMES} . < replace: put", "repaired guard"),
    Omitted(f"{_NAMES} commits/main < replace: quarantine", "repaired"),
    Omitted(f"{_NAMES} quarantine < replace: quarantine", "repaired guard"),
    Omitted(f"{_NAMES} quarantine/commits/main < replace: quarantine", "repaired"),
    Omitted(f"{_NAMES} . < make directory < replace: quarantine", "repaired"),
    Omitted(f"{_NAMES} quarantine < make directory < replace: quarantine", "repaired"),
    Omitted(f"{_NAMES} quarantine/commits < make directory < replace: quarantine", "repaired"),
    # Transactions with a name.
    Omitted(f"{_SYNC}.new < write once < publish record", "named"),
    Omitted(f"{_SYNC}.new < write once < begin with a name", "named"),
    Omitted(f"{_SYNC}.n < seal part", "named"),
    Omitted(f"{_NAMES} .staging < seal part", "named"),
    Omitted(f"{_NAMES} .staging < seal record", "named first"),
    Omitted(f"{_NAMES} .staging < end record < discard", "named first"),
    Omitted(f"{_NAMES} .staging < reclaim", "named first", "commit and tag", "unlink .staging/*.sealed"),
    # Renames and links.
    Omitted("rename commits/main/N < take version", "first commit"),
    Omitted("rename format.json", "first commit"),
    Omitted("rename zarr.json", "first commit"),
    Omitted("rename tags/*", "tags"),
    Omitted("rename .staging/*.open < write once", "named"),
    Omitted("rename .staging/*.sealed", "named first"),
    Omitted("rename .staging/named-run", "named"),
    Omitted("rename locks/commit", "first commit"),
    Omitted("rename locks/staging", "named"),
    Omitted("link packs/*/* < prepare < commit", "cooperative"),
    Omitted("link packs/*/* < prepare < optimize", "optimized"),
    Omitted("rename commits/main/N < take version < publish < optimize", "optimized"),
    Omitted("rename commits/main/N < take version < publish < vacuum", "vacuumed"),
    Omitted("rename oldest_kept/main/N", "sleeper"),
    Omitted("rename quarantine/commits/main/N", "repaired"),
    Omitted("replace zarr.json", "repaired guard"),
    Omitted("link quarantine/zarr.json", "repaired guard"),
]

#: Syncs without which nothing that can be seen differs, and why they are made all the same.
_LATER = "the first durable commit syncs it once more (Identity.make_durable)"
_SEAL = "nothing is promised of a part before it is sealed, which syncs the same directory"
_HEAD_CACHE = "a head cache is never trusted"
SUPERFLUOUS = {
    f"{_SYNC}.0 < prepare": "so that less is left inside the lock",
    f"{_NAMES} the parent < make directory": _LATER,
    f"{_NAMES} commits < make directory": _LATER,
    f"{_NAMES} .staging < write once < publish record": _SEAL,
    f"{_NAMES} .staging < write once < begin with a name": _SEAL,
    f"{_NAMES} .staging < end record < settle transaction": "the history tells what was committed",
    f"{_NAMES} oldest_kept < make directory": "a vacuum syncs `oldest_kept` itself: it may be another's",
    f"{_NAMES} commits/main < sync copy": "BranchesOnDisk.make syncs it once more",
    f"{_NAMES} . < replace: quarantine": "only a second name was made, elsewhere",
    f"{_NAMES} heads < replace": _HEAD_CACHE,
    f"{_NAMES} quarantine/heads < replace": _HEAD_CACHE,
    f"{_NAMES} oldest_kept/* < write once": "as that of main; nobody looks below the other oldest kept versions",
    f"{_NAMES} packs < make directory": "the committer syncs `packs` itself: it may be another's",
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
    Edit("history.branches_on_disk:BranchesOnDisk.head", "not above.follows(found)", "False", "overtaken"),
    Edit("history.branches_on_disk:BranchesOnDisk._break_below", "not stored.follows(below)", "False", "overtaken"),
    Edit(
        "history.branches_on_disk:BranchesOnDisk._break_below",
        "header.version - header.pending",
        "header.version",
        "overtaken",
    ),
    Edit(
        "history.branches_on_disk:BranchesOnDisk.pending",
        "return max(0, header.version - max(vouched, self._durable.version(branch)))",
        "return 0",
        "scratch",
    ),
    Edit(
        "history.branches_on_disk:BranchesOnDisk._follow_head_cache",
        "head_cache.boot == self._storage.boot() != 0",
        "True",
        "overtaken",
    ),
    Edit("history.branches_on_disk:BranchesOnDisk.is_fit_parent", "parent.header.synced and", "", "scratch"),
    Edit("history.branch_store:put_in_version", "there.hash != stored.hash", "False", "overtaken"),
    Edit("history.branch_store:put_in_version", "if there.has_parent_of(stored):", "if True:", "overtaken"),
    Edit(
        "commit:Stored.follows",
        "(self.header.parent_id, self.header.parent_hash) == parent",
        "self.header.parent_id == parent[0]",
        "named first",
        "commit and tag",
        "rename commits",
    ),
    Edit(
        "history.new_commit:NewCommit.take_version",
        "self.commits.store.head_caches.write(stored, durable=False)",
        "self.commits.store.head_caches.write(stored, durable=True)",
        "overtaken",
    ),
    Edit(
        "transactions.participants.shared:SharedTransaction._take_over",
        "committed = self.find_commit()",
        "committed = None",
        "named",
    ),
    Edit(
        "transactions.participants.shared:SharedTransaction._rename_record",
        "except FileExistsError:",
        "except NotADirectoryError:",
        "links, named",
    ),
    Edit("transactions.participants.shared:Tail._check_head", "or not any(head)", "", "named"),
    Edit(
        "transactions.participants.named:_begin",
        "commits.store.make_durable(None if record.base is None else commits.files.at(record.branch, record.base[0]))",
        "commits.identity.make_durable()",
        "named on scratch",
    ),
    Edit(
        "transactions.participants.reclaim:reclaim_staging",
        "names.is_new(file) or file in doomed",
        "names.is_new(file)",
        "first commit",
    ),
    # Chunks that are written in part.
    Edit("transactions.staging:Staging.stage_part", "region |= known.own", "region = WHOLE", "parts"),
    Edit("transactions.draft:Merges.put_together", "self._put(", "id(", "parts"),
    Edit("transactions.draft:Merges.merge", "head.get_view(key)", "self._view.base.get_view(key)", "parts"),
    Edit("transactions.draft:Merges.merge", "change.seq > since", "False", "parts"),
    Edit("transactions.draft:Draft.move_to", "self._append_runs(head)", "pass", "parts"),
    Edit(
        "history.new_commit:NewCommit.append_value",
        "self.end = self._frames_end = end",
        "self._frames_end = end",
        "parts",
    ),
    # Vacuuming: what is kept, and in which order it is said that the rest is not.
    Edit("maintenance.vacuum:_Vacuum._raise", "self.commits.oldest_kept.write(head)", "pass", "late reader"),
    Edit(
        "maintenance.vacuum:_Vacuum._raise",
        "self._make_durable(head)  # an interrupted vacuum may not have done this",
        "pass",
        "late tag",
        "sweep",
        "rename commits/main/N < take version < publish < vacuum",
    ),
    Edit("maintenance.vacuum:_Vacuum._limited", "limits += self._bases()", "pass", "vacuumed around"),
    Edit(
        "maintenance.vacuum:_Vacuum._unreachable",
        "*self._versions_pinned(branch, versions, pinned[branch])",
        "*()",
        "late reader",
    ),
    Edit(
        "maintenance.vacuum:_Vacuum._unreachable",
        "found_version < lowest and path not in needed.paths",
        "found_version < lowest",
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
        "[find_tagged(commits, name) for name in commits.tags.all()]",
        "[]",
        "vacuumed around",
    ),
    Edit(
        "maintenance.reachable:Reachable.add",
        "self.paths.update(pack.path for pack in self._packs_of(name))",
        "pass",
        "vacuumed",
    ),
    Edit("history.kept_commits:KeptCommits.has", "self._is_held(stored) or", "False and", "vacuumed around"),
    Edit(
        "history.kept_commits:KeptCommits.has",
        "self._oldest_kept.of(header.branch) <= header.version",
        "True",
        "vacuumed",
    ),
    Edit(
        "history.branches_on_disk:BranchesOnDisk.head",
        "not self._oldest_kept.is_above(branch, -1 if found is None else found.header.version)",
        "True",
        "vacuumed around",
    ),
    Edit("history.branches:Tags._write", "not commits.kept.stays(stored, but_tag=name)", "False", "late tag"),
    Edit("history.new_commit:NewCommit.take_version", "self._check_oldest_kept(stored)", "pass", "sleeper"),
    Edit("history.new_commit:CommitTurn.take", "not new.commits.files.has(self.ahead)", "False", "killed in the queue"),
    # Branches: what is kept for them.
    Edit("history.branches:Branches._create", "commits.store.ensure(stored)", "pass", "branch on scratch"),
    Edit("transactions.draft:Draft.holding_sources", "self.commits.store.ensure(stored)", "pass", "merged scratch"),
    Edit(
        "transactions.draft:Draft.holding_sources", "self.commits.store.ensure(stored)", "pass", "merged while pending"
    ),
    Edit(
        "maintenance.reachable:kept_commits",
        "for stored in (*tagged, *begun, *there):",
        "for stored in tagged:",
        "branches vacuumed",
    ),
    Edit(
        "maintenance.reachable:kept_commits",
        "living = [*dict.fromkeys([*living, *living_branches(commits)])]",
        'living = ["main"]',
        "branches vacuumed",
    ),
    Edit("history.new_commit:NewCommit._check_oldest_kept", "self.commits.store.give_back(stored)", "pass", "sleeper"),
    Edit(
        "maintenance.optimize:_Optimizer.contents",
        "(at := index.find_runs(self.inputs, runs)) is not None",
        "(at := 0) is not None",
        "housekeeping 1",
    ),
    Edit(
        "history.branch_store:check_not_lost",
        "not oldest_kept.is_above(branch, head_cache.version)",
        "True",
        "vacuumed around",
    ),
    Edit(
        "history.branches_on_disk:BranchesOnDisk.make_durable",
        "self._identity.create(durable=True)",
        "pass",
        "copied, tidied",
    ),
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
    lazy = __future__.annotations.compiler_flag  # as in the module: some names are there for type checkers alone
    code = compile(source.replace(edit.old, edit.new), f"<edited {edit.where}>", "exec", lazy)
    exec(code, vars(module), made)
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
