"""The branches of a repository in an object store.

Committers of all processes try to create the next version: one of them succeeds, for itself or for a group. A listing
that starts right below the newest known commit tells with one request whether that still exists, and which commits are
newer. A commit is durable when the server has confirmed it.
"""

from __future__ import annotations

import contextlib
import errno
import random
import time
from collections.abc import Collection, Sequence
from functools import partial

from txstore import processes
from txstore.commit import Stored
from txstore.errors import CommitUnknownError, CorruptionError, TxStoreError
from txstore.format import encoding, names, packfile
from txstore.format.commitfile import Header
from txstore.format.records import HeadCache
from txstore.history import object_head_caches
from txstore.history.branch_store import (
    Ground,
    KnownHeads,
    VersionTakenError,
    check_not_lost,
    put_in_version,
    read_back,
)
from txstore.history.carried_commits import CarriedCommits
from txstore.history.commit_files import CommitFiles
from txstore.history.group_commits import BEHIND, TRUSTED, BranchListing, GroupCommitMember, GroupCommits, Look
from txstore.history.object_head_caches import TAIL, ObjectHeadCaches
from txstore.storage.objects.errors import NoListsError, NotExclusiveError, is_refusal
from txstore.storage.objects.interface import Object, ObjectStore
from txstore.storage.remote import RemoteStorage

#: Seconds, by the server's clock, that a commit exists before a vacuum deletes it: see `TRUSTED`.
_STANDS = 10.0
#: Number of versions that a committer reads at once after it has lost one: there may be more new commits.
_LOOKED_AT = 4
#: Seconds: what a round trip takes is measured, with all that a process may have been held up by.
_LONGEST_PAUSE = 0.1
_LISTED = 1000
#: A group commit this young, in seconds, means that others are about to commit.
_RECENT = 2.0
#: Other committers that make it unlikely that a version is still free after a large upload.
_CROWD = 2
#: Seconds after which another process writes the missing files of a group commit.
_PATIENCE = 2.0
_UNKNOWN = (
    "this server lists no names: the newest commit can't be found. Try again in a moment, commit once more, or let the "
    "server list directories"
)


class BranchesInObjects:
    """The `BranchStore` of an object store."""

    takes_turns = False
    keeps_out_others = False
    may_be_taken_twice = True

    def __init__(
        self, storage: RemoteStorage, ground: Ground, carried: CarriedCommits, head_caches: ObjectHeadCaches
    ) -> None:
        self._storage, self._identity, self._branches = storage, ground.identity, ground.branches
        self._files, self._oldest_kept, self._carried = ground.files, ground.oldest_kept, carried
        self.head_caches = head_caches
        self._known = KnownHeads(ground.identity, ground.branches)
        self._looks, self._listings = Looks(), Listings(storage.objects)
        self._contention = Contention(self._listings)
        self._decided = DecidedCommits(storage, self._files, self._listings, self._known)
        self._proof = CreationProof(storage, self._listings, head_caches)
        self._group_commits = GroupCommits(
            self._decided, storage.objects, storage.late_answers, self._proof.confirm, self._oldest_kept.is_above
        )
        self._groups = WholeGroups(storage, self._files, self._listings, self._contention, self._group_commits)
        self._makes_requests = storage.capabilities.makes_requests
        # Of each branch, the commit last met in a listing, and its time there.
        self._listed: dict[str, tuple[bytes, float | None]] = {}
        self._sure_of: bytes | None = None  # the last commit here, if it can't have taken a version that was freed

    # --- the head

    def to_follow(self, branch: str) -> Stored | None:
        newest, look = self._known.of(branch), self._looks.of(branch)
        if look is None or look.age >= object_head_caches.STAYS or not self._makes_requests:
            return self.head(branch)
        if newest is None:
            return None  # a moment ago there was no commit
        last = self._decided.last(branch, newest)
        group_commit = last.header.group_commit
        if group_commit is not None and group_commit.place + 1 < group_commit.length:
            return self.head(branch)  # the next version is decided: no other committer may propose to it
        return last  # the server says whether the next version is still free

    def head(self, branch: str) -> Stored | None:
        newest, look = self._known.of(branch), Look.now()
        known, head_cache = newest, None
        if newest is None or newest.header.branch != branch:
            head_cache, known = self.head_caches.commit(branch, self._files)
        found = self._look_above(branch, known) if known is not None else None
        if found is None:
            found = self._search(branch) or self._files.fork_point(branch)
        if newest is not None and found is not None and _has_taken_place_of(newest, found):
            self._branches.check_living(branch)
            raise self._proof.taken_away(newest)
        self._known.check(branch, newest, found)
        if head_cache is not None and head_cache.is_durable_at(self._storage.place()) and _is_before(found, head_cache):
            check_not_lost(self._branches, self._oldest_kept, branch, head_cache)
        if found is not None:
            self._known.note_newer(branch, found)
        self._looks.note(branch, look)
        return found

    def _look_above(self, branch: str, known: Stored) -> Stored | None:
        """Return the newest commit from a known one on. None if neither that nor a newer one exists."""
        version = known.header.version
        listed = self._listings.above(branch, max(version - BEHIND, 0))
        if listed is None:
            return self._walk_above(branch, known)
        versions = {at: each for at, each in listed.versions.items() if at >= version}
        if not versions:
            # A listing may lag behind: a commit that this process has seen may exist all the same.
            return known if self._files.has_footer(known) else None
        top = max(versions)
        self._contention.notice(branch, top, listed)
        if top == version and self._is_same(known, versions[version]):
            return self._groups.whole(known, versions)
        stored = self._files.read(branch, top)
        if stored is None:
            return self._search(branch)  # its committer has given it back, or a vacuum has deleted it
        if top == version + 1 and not stored.follows(known):
            self._proof.doubt(known)
            return known  # an orphan
        if top > version and self._is_made_here(known) and not self._carried.is_before(known, stored):
            raise self._proof.taken_away(known)
        self._listed[branch] = stored.header.id, versions[top].modified
        return self._groups.whole(stored, versions)

    def _is_made_here(self, stored: Stored) -> bool:
        return self.head_caches.made.get(stored.header.branch) == stored.header.id

    def _is_same(self, known: Stored, listed: Object) -> bool:
        """Tell whether a listed object is the one from which a commit was read, and not a replacement.

        Objects never change: one with the same length and time is the same. The first listing gives the time; before
        that, the length has to match.
        """
        if listed.size != known.footer.file_length:
            return False
        branch = known.header.branch
        met = self._listed.get(branch)
        if met is None or met[0] != known.header.id:
            met = self._listed[branch] = known.header.id, listed.modified
        return met[1] == listed.modified

    def _walk_above(self, branch: str, known: Stored) -> Stored | None:
        found: Stored | None = known
        while found is not None:
            above = self._files.read(branch, found.header.version + 1)
            if above is None or not above.follows(found):
                break
            found = above
        if found is known and not self._files.has_footer(known):
            return None
        # I10: below the oldest kept version there are gaps.
        if found is not None and (
            self._oldest_kept.is_above(branch, found.header.version) or self._is_above(branch, found)
        ):
            return None
        return (
            None if found is None else self._groups.whole(found, range(known.header.version, found.header.version + 1))
        )

    def _is_above(self, branch: str, found: Stored) -> bool:
        """Tell whether the head cache names a commit above another one."""
        with contextlib.suppress(FileNotFoundError, encoding.MalformedError):
            return self.head_caches.read(branch).version > found.header.version
        return False

    def _search(self, branch: str) -> Stored | None:
        """Find the head in a listing of all versions."""
        try:
            versions = self._listings.all(branch).versions
        except NoListsError:
            return self._of_head_cache(branch)
        for version in sorted(versions, reverse=True):
            if (found := self._files.read(branch, version)) is not None:
                return self._groups.whole(found, versions)
        return None

    def _of_head_cache(self, branch: str) -> Stored | None:
        """Find the head where the server lists no names: the head cache alone tells which commit is the newest."""
        path, reason = names.head_cache_path(branch), "the commit that it names is gone"
        for _ in range(2):  # a vacuum may delete the commit meanwhile
            try:
                head_cache = self.head_caches.read(branch)
            except FileNotFoundError:
                fork = self._branches.fork(branch)
                if fork is not None and self._files.read(branch, fork.version + 1) is None:
                    return None  # it has no commits of its own
                words = f"there is no such file, and {_UNKNOWN}"
                raise NoListsError(errno.ENOTSUP, words, f"{self._storage.url}/{path}") from None
            except encoding.MalformedError as error:
                raise CorruptionError(path, reason=f"{error.reason}, and {_UNKNOWN}") from error
            found = self._files.read(branch, head_cache.version)
            if found is not None and found.header.id == head_cache.commit_id:
                while (above := self._files.read(branch, found.header.version + 1)) is not None and above.follows(
                    found
                ):
                    found = above
                return self._groups.whole(found, range(head_cache.version, found.header.version + 1))
        raise CorruptionError(path, reason=f"{reason}, and {_UNKNOWN}")

    # --- taking a version

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
        self.head_caches.note(stored, content[-TAIL:])
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

    # --- what is durable

    def pending(self, branch: str, parent: Stored | None) -> int:
        return 0

    def is_fit_parent(self, branch: str, parent: Stored | None) -> bool:
        return parent is not None

    def ensure(self, stored: Stored) -> None:
        self.make_durable(stored)

    def ensure_without_room(self, stored: Stored) -> None:
        """Do nothing: to ask the server whether it creates exclusively would take space."""

    def make_durable(self, newest: Stored | None, branch: str | None = None) -> None:
        self._identity.create(durable=True)

    def settle(self, stored: Stored) -> None:
        """Do nothing: the object is durable since it was created."""


def _is_before(found: Stored | None, head_cache: HeadCache) -> bool:
    """Tell whether the newest commit shows that the one is gone that a head cache names."""
    if found is None or found.header.version < head_cache.version:
        return True
    return found.header.version == head_cache.version and found.header.id != head_cache.commit_id


def _has_taken_place_of(known: Stored, found: Stored) -> bool:
    """Tell whether another commit is in the version of a known one."""
    return found.header.version == known.header.version and found.header.id != known.header.id


# --- what this process has seen of each branch


class Listings:
    """Lists the branches of one repository."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.can_list_on = True  # whether it lists from a name on; True until a listing has failed
        self.has_listed_on = False
        self.stopped: set[str] = set()  # branches whose commits are stopped until a repair

    def above(self, branch: str, version: int) -> BranchListing | None:
        """List a branch from a version on. None if the server can't do so with one request."""
        directory, after = names.commits_directory(branch), names.version_name(version - 1) if version else ""
        found = self._objects.list_after(directory, after, _LISTED)
        if found is None:
            self.can_list_on = False
            return None
        self.has_listed_on = True
        listed = list(found)
        while len(found) == _LISTED:
            found = self._objects.list_after(directory, listed[-1].name, _LISTED) or []
            listed += found
        return self._sorted_out(branch, listed)

    def _sorted_out(self, branch: str, found: Collection[Object]) -> BranchListing:
        listed = BranchListing.of(found)
        (self.stopped.add if listed.stops else self.stopped.discard)(branch)
        return listed

    def all(self, branch: str) -> BranchListing:
        """List a whole branch."""
        return self._sorted_out(branch, self._objects.list(names.commits_directory(branch)))


class Looks:
    """The times when this process last looked for the head of each branch."""

    def __init__(self) -> None:
        self._looks: dict[str, Look] = {}

    def of(self, branch: str) -> Look | None:
        return self._looks.get(branch)

    def note(self, branch: str, look: Look) -> None:
        self._looks[branch] = look

    def forget(self, branch: str) -> Look | None:
        """Forget the last look, so that the next committer looks for the head. Return the last look."""
        return self._looks.pop(branch, None)

    def note_free(self, branch: str, look: Look, before: Look | None) -> None:
        """Record that the version above the known head was free. The look before shows that it was never taken.

        If that look is too old, a vacuum may have freed the version since: then the next committer has to list.
        """
        if is_trusted(before):
            self.note(branch, look)
        else:
            self.forget(branch)


def is_trusted(look: Look | None) -> bool:
    """Tell whether a look is so recent that no vacuum can have freed versions that it saw (I10)."""
    return look is not None and look.age < TRUSTED


class Contention:
    """The other committers of each branch that this process knows of."""

    def __init__(self, listings: Listings) -> None:
        self._listings = listings
        self._is_contended: dict[str, bool] = {}  # other committers are about to commit, too
        self._is_crowded: dict[str, bool] = {}
        self._led: dict[str, int] = {}  # the version that another committer is about to take for a group
        self._has_lost = False  # the running commit has lost a version
        self._has_waited: bytes | None = None  # the last commit of this process that has let a group pass

    def is_contended(self, branch: str) -> bool:
        return self._listings.can_list_on and self._is_contended.get(branch, False)

    def has_crowd(self, branch: str) -> bool:
        return self._listings.can_list_on and self._is_crowded.get(branch, False)

    def is_led(self, branch: str, version: int) -> bool:
        return self._led.get(branch) == version

    def set_contended(self, branch: str, is_contended: bool) -> None:
        self._is_contended[branch] = is_contended

    def has_to_wait(self, stored: Stored) -> bool:
        """Tell whether a commit has to let a group commit pass first. True at most once for each commit."""
        header = stored.header
        if not self.is_contended(header.branch) or header.fork is not None or self._has_waited == header.id:
            return False
        self._has_waited = header.id
        return True

    def note_won(self) -> None:
        self._has_lost = False

    def note_lost(self, branch: str) -> None:
        """Note that another committer was faster.

        A committer that has met one other for the first time tries again alone: that takes fewer round trips than
        looking for more. It does not if the server has never listed from a name on.
        """
        self._is_contended[branch] = self._has_lost and self._listings.has_listed_on
        self._has_lost = True

    def note_line(self, branch: str, line: list[Stored]) -> None:
        """Note the commits that were found in a lost version and the versions above it."""
        is_group = line[-1].header.group_commit is not None
        self._is_contended[branch] |= (len(line) > 1 and self._listings.has_listed_on) or is_group

    def note_group(self, stored: Stored, length: int) -> None:
        """Note that a commit belongs to a group commit of `length` commits."""
        branch = stored.header.branch
        if abs(time.time() - stored.header.time / 1e6) < _RECENT:
            self._is_contended[branch] = True
            self._is_crowded[branch] = self._is_crowded.get(branch, False) or length > _CROWD

    def notice(self, branch: str, top: int, listed: BranchListing) -> None:
        """Note whether other committers are about to commit: the listing shows their proposals.

        A proposal may be for a version that is now below the head, if another committer takes versions fast.
        """
        newest = listed.versions[top].modified
        others = {
            commit
            for (version, commit), proposal in listed.proposals.items()
            if version >= top or (newest is not None and newest - (proposal.modified or 0.0) < _RECENT)
        }
        self._is_contended[branch], self._is_crowded[branch] = bool(others), len(others) >= _CROWD
        self._led[branch] = max(listed.leads, default=-1)
        self._has_lost = False


class CreationProof:
    """Asks the server before and after a commit takes a version, and stops the commits to a branch."""

    def __init__(self, storage: RemoteStorage, listings: Listings, head_caches: ObjectHeadCaches) -> None:
        self._storage = storage
        self._listings = listings
        self._head_caches = head_caches
        self._unwritten: dict[str, Stored] = {}  # for each branch, the commit that the stop file will name
        # For each branch, a commit that the next version does not follow, or that may have taken another's version.
        self._doubted: dict[str, Stored] = {}

    def doubt(self, stored: Stored) -> None:
        """Ask the server again before the next commit to the branch: this commit may have taken another's version."""
        self._doubted[stored.header.branch] = stored

    def taken_away(self, known: Stored) -> CorruptionError:
        """Return the error for a commit that this process has seen, and whose version another commit has now."""
        self._head_caches.stop()
        reason = f"commit {known.header.id.hex()} was here, and another one has its place"
        if known.header.branch in self._head_caches.made:  # a process that only reads can ask nothing
            reason += self.why(known)
        return CorruptionError(known.path, reason=f"{reason}: the repository was repaired, deleted or replaced")

    def why(self, stored: Stored) -> str:
        """Ask the server again whether it creates exclusively: a commit is not in its version. Return the cause."""
        self._storage.creation_check.doubt()
        try:
            self._prove(stored)
        except OSError as error:
            return f" ({error})"
        return ""

    def _prove(self, suspect: Stored | None) -> None:
        """Raise `OSError` if the server may not create exclusively.

        If it does not, stop all commits to the branch of `suspect`, which may have taken another's version, or lost its
        own.
        """
        try:
            self._storage.creation_check.wait()
        except NotExclusiveError:
            if suspect is not None:
                self._stop(suspect)
            raise

    def check_listing(self, branch: str) -> None:
        """Raise `OSError` if the present listing says that commits may have taken each other's versions."""
        self._listings.all(branch)
        self._raise_if_stopped(branch)

    def _raise_if_stopped(self, branch: str) -> None:
        if branch in self._listings.stopped:
            self._head_caches.stop()  # a repair may not keep their commits
            words = (
                "a commit has found that the server did not create objects exclusively, so that commits may have taken "
                "each other's places. No process commits until repo.verify(repair=True), or `txstore verify "
                "--repair`, has put them right. Ceph 16.2 does so in a bucket that keeps versions: suspend versioning "
                "first"
            )
            raise OSError(errno.EOPNOTSUPP, words, f"{self._storage.url}/{names.commits_directory(branch)}")

    def check_creation(self, branch: str) -> None:
        """Raise `OSError` if a commit could take another's version, or may have done so."""
        self._write_stop(branch)
        self._raise_if_stopped(branch)
        doubted = self._doubted.get(branch)
        if doubted is not None:
            self._storage.creation_check.doubt()
        self._prove(doubted)
        self._doubted.pop(branch, None)

    def confirm(self, stored: Stored) -> None:
        """Raise `CommitUnknownError` if a new commit may have taken another's version."""
        self._storage.creation_check.renew()  # if it took long
        try:
            self._prove(stored)
            self._raise_if_stopped(stored.header.branch)
        except OSError as error:
            version = stored.header.version
            reason = f"it was put into version {version}, which may have been another's, or may become so ({error})"
            if isinstance(error, NotExclusiveError):
                reason += ". Then run repo.verify(repair=True). Until then"
            raise CommitUnknownError(stored.header.id.hex(), reason=reason) from error

    def _stop(self, stored: Stored) -> None:
        """Stop all commits to a branch until a repair. Each process that looks for its head sees the stop file."""
        self._unwritten[stored.header.branch] = stored
        try:
            self._write_stop(stored.header.branch)
        except BaseException:  # Ctrl-C, for example: other processes may not know of it yet
            self._write_stop(stored.header.branch)
            raise
        self._head_caches.stop()

    def _write_stop(self, branch: str) -> None:
        """Write the stop file. If that fails, the next use of the branch tries again."""
        if (stored := self._unwritten.get(branch)) is None:
            return
        self._listings.stopped.add(branch)
        header = stored.header
        with contextlib.suppress(OSError):
            self._storage.objects.put(names.stop_path(branch, header.version, header.id), [header.id])
            del self._unwritten[branch]


class DecidedCommits:
    """The `GroupCommitHistory` of one repository."""

    def __init__(self, storage: RemoteStorage, files: CommitFiles, listings: Listings, known: KnownHeads) -> None:
        self._storage = storage
        self._files = files
        self._listings = listings
        self._known = known
        self._loose: dict[str, list[GroupCommitMember]] = {}  # by branch
        self._lock = processes.new_lock()

    def has_any(self, branch: str) -> bool:
        return bool(self._loose.get(branch))

    def last(self, branch: str, newest: Stored) -> Stored:
        """Return the last decided commit, or `newest` if the files of all are known to exist."""
        self.missing(branch, -1, ())  # this forgets commits whose files were seen since
        with self._lock:
            loose = self._loose.get(branch)
            return loose[-1].stored if loose else newest

    def list_from(self, branch: str, version: int) -> BranchListing:
        listed = self._listings.above(branch, version)
        if listed is None:
            raise OSError(f"{self._storage.url}: it can't be listed from a name on")
        return listed

    def read_file(self, branch: str, version: int) -> GroupCommitMember | None:
        path = names.commit_path(branch, version)
        try:
            content = self._storage.objects.get(path)
        except FileNotFoundError:
            return None
        return GroupCommitMember(self._files.decode_only(path, branch, version, content, len(content)), content)

    def decided(self, found: Sequence[GroupCommitMember]) -> None:
        with self._lock:
            for each in found:
                branch = each.stored.header.branch
                loose, newest = self._loose.setdefault(branch, []), self._known.of(branch)
                last = loose[-1].stored if loose else newest
                if last is None or each.stored.header.version > last.header.version:
                    loose.append(each)
                    self._storage.cache.keep(each.stored.header.id, 0, each.content)

    def missing(self, branch: str, upto: int, there: Collection[int]) -> list[GroupCommitMember]:
        with self._lock:  # else two threads could look at the same commit and remove two
            loose, newest = self._loose.get(branch, []), self._known.of(branch)
            while loose and (
                loose[0].stored.header.version in there
                or (newest and loose[0].stored.header.version <= newest.header.version)
            ):
                placed = loose.pop(0).stored
                if newest is None or placed.header.version > newest.header.version:
                    newest = placed
                    self._known.note(branch, placed)
            versions = [(each.stored.header.version, each) for each in loose]
            return [each for version, each in versions if version <= upto and version not in there]

    def first_unseen(self, branch: str) -> int:
        newest = self._known.of(branch)
        return 0 if newest is None else newest.header.version + 1


class WholeGroups:
    """Waits until all files of a group commit exist, or writes the missing ones."""

    def __init__(
        self,
        storage: RemoteStorage,
        files: CommitFiles,
        listings: Listings,
        contention: Contention,
        group_commits: GroupCommits,
    ) -> None:
        self._storage = storage
        self._files = files
        self._listings = listings
        self._contention = contention
        self._group_commits = group_commits

    def whole(self, stored: Stored, there: Collection[int]) -> Stored:
        """Return the last commit of a commit's group commit, after all files of the group exist.

        The leader writes them at once, unless it has died. `there`: versions whose files are known to exist.
        """
        group_commit = stored.header.group_commit
        if group_commit is None:
            return stored
        branch = stored.header.branch
        self._contention.note_group(stored, group_commit.length)
        first = stored.header.version - group_commit.place
        low = min(there, default=first)
        missing = {version for version in range(max(first, low), first + group_commit.length) if version not in there}
        began = asked = time.monotonic()
        while missing and asked < began + _PATIENCE:
            listed = self._listings.above(branch, min(missing)) if self._listings.can_list_on else None
            missing = {version for version in missing if not self._is_there(branch, version, listed)}
            time.sleep((time.monotonic() - asked) / 2 if missing else 0.0)
            asked = time.monotonic()
        if missing:
            try:
                self._group_commits.complete(branch, first)
            except PermissionError:  # a process that may only read stops at the last commit whose file exists
                last = self._files.read(branch, min(missing) - 1)
                return stored if last is None else last
        last = (
            stored
            if group_commit.place + 1 == group_commit.length
            else self._files.read(branch, first + group_commit.length - 1)
        )
        if last is None:
            raise CorruptionError(stored.path, reason="the files of its group commit are missing")
        self._take_along(last, first)
        return last

    def _is_there(self, branch: str, version: int, listed: BranchListing | None) -> bool:
        return (
            self._storage.exists(names.commit_path(branch, version)) if listed is None else version in listed.versions
        )

    def _take_along(self, last: Stored, first: int) -> None:
        """Read all commits of a group with one request, if they are not cached: their runs are small and many."""
        before = last.header.runs[1:2]
        pack = before[0].pack if before else None
        if pack is None or self._storage.cache.find(pack.id, packfile.HEAD_SIZE, 1) is not None:
            return
        with contextlib.suppress(OSError, CorruptionError):  # each can also be read alone
            for each in self._group_commits.read(last.header.branch, first):
                self._storage.cache.keep(each.stored.header.id, 0, each.content)
