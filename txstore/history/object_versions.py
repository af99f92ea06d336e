"""Takes a version on an object store: committers of all processes create the next version, which succeeds once."""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from functools import partial

from txstore.commit import Stored
from txstore.commit_queue.group_commits import GroupCommits, Look
from txstore.errors import CommitUnknownError, CorruptionError, TxStoreError
from txstore.format import names
from txstore.format.commitfile import Header
from txstore.history.branch_names import OldestKept
from txstore.history.commit_files import CommitFiles
from txstore.history.creation_proof import CreationProof
from txstore.history.decided_group_commits import DecidedCommits
from txstore.history.heads import KnownHeads
from txstore.history.identity import Identity
from txstore.history.listings import Contention, Listings, Looks, is_trusted
from txstore.history.object_head_caches import TAIL, ObjectHeadCaches
from txstore.history.versions import AtVersion, CommitStrategy, VersionTakenError, put_in_version, read_back
from txstore.storage.objects.errors import is_refusal
from txstore.storage.remote import RemoteStorage

#: Seconds, by the server's clock, that a commit exists before a vacuum deletes it: see `TRUSTED`.
_STANDS = 10.0
#: Number of versions that a committer reads at once after it has lost one: there may be more new commits.
_LOOKED_AT = 4
#: Seconds: what a round trip takes is measured, with all that a process may have been held up by.
_LONGEST_PAUSE = 0.1


class ExclusiveCreate:
    """Committers of all processes try to create the next version: one of them succeeds, for itself or for a group."""

    strategy: CommitStrategy = AtVersion()
    keeps_out_others = False
    may_be_taken_twice = True

    def __init__(
        self,
        storage: RemoteStorage,
        identity: Identity,
        files: CommitFiles,
        oldest_kept: OldestKept,
        head_caches: ObjectHeadCaches,
        known: KnownHeads,
        looks: Looks,
        listings: Listings,
        contention: Contention,
        decided: DecidedCommits,
        group_commits: GroupCommits,
        proof: CreationProof,
        *,
        makes_requests: bool,
    ) -> None:
        self._storage = storage
        self._identity = identity
        self._files = files
        self._oldest_kept = oldest_kept
        self._head_caches = head_caches
        self._known = known
        self._looks = looks
        self._listings = listings
        self._contention = contention
        self._decided = decided
        self._group_commits = group_commits
        self._proof = proof
        self._makes_requests = makes_requests
        self._sure_of: bytes | None = None  # the last commit here, if it can't have taken a version that was freed

    def may_have_taken(self, stored: Stored) -> bool:
        return True  # the server may still execute a request whose answer this process did not wait for

    def give_back(self, stored: Stored) -> None:
        self._known.forget(stored.header.branch)
        self._storage.delete(stored.path)

    def is_crowded(self, branch: str) -> bool:
        return self._contention.has_crowd(branch)

    def check_not_stopped(self, branch: str) -> None:
        self._proof.check_listing(branch)

    def take(self, source: str, stored: Stored, *, joins: bool = False) -> Stored:
        self._proof.check_creation(stored.header.branch)
        self._storage.creation_check.renew()
        try:
            return self._take(source, stored, joins=joins)
        except (VersionTakenError, OSError):
            raise  # it was not made
        except BaseException:
            self._proof.doubt(stored)
            raise

    def _take(self, source: str, stored: Stored, *, joins: bool) -> Stored:
        branch, content = stored.header.branch, self._storage.staged.read(source)
        look, began = self._looks.of(branch), Look.now()
        if joins and stored.header.fork is None and self._contention.is_contended(branch):
            is_led = self._contention.is_led(branch, stored.header.version)
            made = self._group_commits.commit(content, stored, look, is_led=is_led)
            is_group = made is None or made.stored.header.group_commit is not None
            self._contention.set_contended(branch, is_group)
            self._looks.note_free(branch, began, look)
            if made is None:
                raise VersionTakenError
            stored, content = made  # the file as it is now: with others' commits, or behind them
        else:
            if self._lets_others_pass(stored):
                raise VersionTakenError
            if self._decided.has_any(branch):
                self._group_commits.wait_for(branch, stored.header.version - 1)
            put_in_version(self._storage, source, stored, self)
            self._known.note(branch, stored)
            self._looks.note_free(branch, began, look)
        self._proof.confirm(stored)
        self._contention.note_won()
        is_sure = self._makes_requests and is_trusted(look)
        self._sure_of = stored.header.id if is_sure else None
        self._storage.staged.forget(source)  # it is still there if the answer was lost
        self._files.keep(stored, content[-TAIL:])
        self._head_caches.note(stored, content[-TAIL:])
        return stored

    def _lets_others_pass(self, stored: Stored) -> bool:
        """Let a group commit take the next version, once for each commit. Return whether the version is taken.

        A group is slower than a single committer. Without this, a process that commits repeatedly would take all
        versions.
        """
        branch, version = stored.header.branch, stored.header.version
        if not self._contention.has_to_wait(stored):
            return False
        is_taken = self._group_commits.let_pass(branch, version)
        if is_taken:
            self._looks.forget(branch)  # so that the next attempt looks for the head
        return is_taken

    def read_back(self, header: Header, error: OSError) -> Stored | None:
        if is_refusal(error) and not isinstance(error, FileExistsError):
            return None  # a process that may not write may not be allowed to read either: do not ask
        if not isinstance(error, FileExistsError):
            return read_back(self._storage, self._files, header, error)
        branch, asked = header.branch, self._looks.forget(header.branch)
        self._contention.note_lost(branch)
        # two committers that have met at one version should not meet at the next
        if asked is not None and not self._listings.can_list_on:
            time.sleep(random.uniform(0, min(asked.age, _LONGEST_PAUSE)))
        look, line = Look.now(), list[Stored]()
        try:
            for each in self._files.each(
                partial(self._files.read, branch), range(header.version, header.version + _LOOKED_AT)
            ):
                if each is None or (line and not each.follows(line[-1])):
                    break
                line.append(each)
        except (OSError, TxStoreError):
            return read_back(self._storage, self._files, header, error)  # which says what is wrong
        if not line:
            return read_back(self._storage, self._files, header, error)
        if line[0].header.parent_id == header.parent_id and len(line) < _LOOKED_AT:
            self._known.note(branch, line[-1])
            self._looks.note_free(branch, look, asked)
            self._contention.note_line(branch, line)
            group_commit = line[-1].header.group_commit
            is_sure = is_trusted(asked)  # I10: the group commit is part of the history
            if is_sure and group_commit is not None and group_commit.place + 1 < group_commit.length:
                first = line[-1].header.version - group_commit.place
                decided = self._group_commits.read(branch, first)
                self._decided.decided(
                    [each for each in decided if each.stored.header.version > line[-1].header.version]
                )
        return line[0]

    def is_passed(self, stored: Stored) -> bool:
        return stored.header.id != self._sure_of and self._oldest_kept.is_above(
            stored.header.branch, stored.header.decided_in
        )

    def let_stand(self, paths: Collection[str]) -> None:
        young = {found for found in map(names.parse_commit_path, paths) if found is not None}
        if not young or not self._makes_requests:
            return
        changed = [
            found.modified
            for branch in {branch for branch, _ in young}
            for found in self._storage.objects.list(names.commits_directory(branch))
            if (branch, names.parse_version(found.name)) in young and found.modified is not None
        ]
        if changed:
            # The server's clock usually gives whole seconds.
            time.sleep(min(max(0.0, max(changed) + 1 + _STANDS - self._storage.now()), _STANDS + 1))

    def move_aside(self, orphan: Stored) -> None:
        # Deleting it could delete another commit: nothing keeps the version unchanged after it was read.
        reason = (
            "it does not follow the commit below it: somebody has copied or deleted objects, or the server did not "
            f"create them exclusively for a while{self._proof.why(orphan)}"
        )
        raise CorruptionError(orphan.path, reason=reason)

    def not_taken(self, header: Header, error: OSError) -> OSError | CommitUnknownError:
        if is_refusal(error):
            return error
        # I3: the version is free, but the server may still execute a request that it has not answered.
        return CommitUnknownError(header.id.hex(), reason=f"the server did not confirm it ({error})")
