"""The history of a repository on an object store: few requests, since each takes its time.

What was created there is durable, so nothing is pending and no chain of parents has to be walked. A listing that begins
right below the newest known commit tells in one request whether it is still there and what has come since. The head
cache is written when there is time, not more often than `HEAD_CACHE_PERIOD`, and holds the end of the commit's file,
too: a process that opens the repository has the header, and as a rule the index of the run, without another request.
"""

from __future__ import annotations

import contextlib
import errno
import random
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial

from txstore import processes
from txstore.commit import MAIN, Stored
from txstore.commit_queue.group_commits import BEHIND, TRUSTED, BranchListing, GroupCommitMember, GroupCommits, Look
from txstore.commit_queue.strategy import AtVersion, CommitStrategy
from txstore.commit_queue.tickets import End, Seen, Tickets, Turns
from txstore.errors import CommitUnknownError, CorruptionError, TxStoreError
from txstore.format import names, packfile
from txstore.format.commitfile import Header
from txstore.history import object_head_caches
from txstore.history.carried_commits import CarriedCommits
from txstore.history.commit_files import FileReads
from txstore.history.commits import Commits, VersionTakenError
from txstore.history.durability import DurableObjects
from txstore.history.object_head_caches import TAIL, IdentityOfObjects, ObjectHeadCaches
from txstore.history.staged_packs import PacksInPlace
from txstore.storage.objects.errors import NotExclusiveError, is_refusal
from txstore.storage.objects.interface import Object
from txstore.storage.remote import RemoteStorage

_LISTED = 1000
#: Seconds, by the server's clock, that a commit exists before a vacuum deletes it: see `TRUSTED`.
_STANDS = 10.0
#: A group commit this young, in seconds, means that others are about to commit.
_RECENT = 2.0
#: Other committers that make it unlikely that a version is still free after a large upload.
_CROWD = 2
#: Seconds after which somebody else puts the commits of a group commit in their places.
_PATIENCE = 2.0
#: Versions that a committer reads at once when it has lost one: others may have committed more meanwhile.
_LOOKED_AT = 4
#: Seconds: what a round trip takes is measured, with all that a process may have been held up by.
_LONGEST_PAUSE = 0.1


class RemoteCommits(Commits):
    """The history of one repository on an object store."""

    storage: RemoteStorage
    merged_at_once = 16 << 10  # they go to the server, and may have to come from there first
    strategy: CommitStrategy = AtVersion()

    def __init__(self, storage: RemoteStorage) -> None:
        self._head_caches = ObjectHeadCaches(storage)
        identity = IdentityOfObjects(storage, self._head_caches.expect)
        super().__init__(storage, identity, FileReads(tail_size=TAIL, at_once=128, keep=self._keep))
        self._carried = self._tell()
        # Of each branch, the commit last met in a listing, and its time there.
        self._listed: dict[str, tuple[bytes, float | None]] = {}
        self._looks: dict[str, Look] = {}  # of each branch, when it was last looked for its head
        self._sure_of: bytes | None = None  # the last commit here, if it can't have taken a version that was freed
        # Of each branch: whether others are about to commit, too; the version that one of them is about to take for
        # all.
        self._is_contended: dict[str, bool] = {}
        self._is_crowded: dict[str, bool] = {}
        self._led: dict[str, int] = {}
        # Of each branch, what was decided behind the head, and is not known to be in its place.
        self._loose: dict[str, list[GroupCommitMember]] = {}
        self._loose_lock = processes.new_lock()
        self._group_commits = GroupCommits(self, storage.objects, storage.late_answers, self.oldest_kept.is_above)
        self._tickets = Tickets(self, storage.objects)
        self._can_list_on = True  # as far as it was tried
        self._has_listed_on = False
        self._has_lost = False  # a version, in the commit that is under way
        self._has_waited: bytes | None = None  # the last commit here that has let others pass
        self._stopped: set[str] = set()  # branches that no process may commit to until they are repaired
        self._unwritten: dict[str, Stored] = {}  # of each branch, the commit that such a stop is to name
        # Of each branch, what is not followed by what is in the next version; or may have another's, for all one knows.
        self._doubted: dict[str, Stored] = {}

    def _make_parts(self) -> None:
        self.head_caches = self._head_caches
        self.durability = DurableObjects(self.identity)
        self.staged = PacksInPlace(self.storage, self.identity)

    def _tell(self) -> CarriedCommits:
        return CarriedCommits(self.files, self.identity, self.branches, self.storage.cache)

    def may_have_taken(self, stored: Stored) -> bool:
        return True  # the server may yet come to a request whose answer was not waited for

    def hold_kept(self, find: Callable[[], dict[str, int]], hold: Callable[[str, Stored], object]) -> dict[str, int]:
        return find()  # no vacuum sees a pin

    # --- the head

    def head_to_follow(self, branch: str) -> Stored | None:
        newest, look = self._newest.get(branch), self._looks.get(branch)
        if look is None or look.age >= object_head_caches.STAYS or not self.storage.capabilities.makes_requests:
            return self.head(branch)
        if newest is None:
            return None  # as it was a moment ago, before the first commit
        self.missing(branch, -1, ())  # what has been seen since is loose no more
        with self._loose_lock:
            loose = self._loose.get(branch)
            last = loose[-1].stored if loose else newest
        group_commit = last.header.group_commit
        if group_commit is not None and group_commit.place + 1 < group_commit.length:
            return self.head(branch)  # the next version is decided: no other committer may propose to it
        return last  # the server says whether the next version is still free

    def head(self, branch: str = MAIN) -> Stored | None:
        return self.head_in(branch, None)

    def head_in(self, branch: str, seen: Seen | None) -> Stored | None:
        newest = self._newest.get(branch)
        look = Look.now() if seen is None else seen.look
        known = (
            newest
            if newest is not None and newest.header.branch == branch
            else self._head_caches.commit(branch, self.files)
        )
        found = self._look_above(branch, known, seen) if known is not None else None
        if found is None:
            found = self._search(branch, None) or self.files.fork_point(branch)
        if found is None:
            self.identity.check_there()
        if newest is not None and (
            found is None
            or found.header.version < newest.header.version
            or (found.header.version == newest.header.version and found.header.id != newest.header.id)
        ):
            self.branches.check_living(branch)
            if found is not None and found.header.version == newest.header.version:
                raise self._taken_away(newest)
            reason = f"version {newest.header.version} was there and is gone: the repository was deleted or replaced"
            raise CorruptionError(names.commits_directory(branch), reason=reason)
        if found is not None:
            there = self._newest.get(branch)  # another thread may have found a newer one since
            if there is None or there.header.version < found.header.version:
                self._newest[branch] = found
        self._looks[branch] = look
        return found

    def see(self, branch: str) -> Seen | None:
        newest, look = self._newest.get(branch), Look.now()
        if newest is None or newest.header.branch != branch:
            return None
        listed = self._list_from(branch, max(newest.header.version - BEHIND, 0))
        return None if listed is None else Seen(look, listed)

    def _look_above(self, branch: str, known: Stored, seen: Seen | None) -> Stored | None:
        """Return the newest commit from a known one on; None if that is not there, and nothing above it.

        `seen`: what was listed from there, if it was a moment ago.
        """
        version = known.header.version
        listed = self._list_from(branch, max(version - BEHIND, 0)) if seen is None else seen.listed
        if listed is None:
            return self._walk_above(branch, known)
        versions = {at: each for at, each in listed.versions.items() if at >= version}
        if not versions:
            # A server's listing may be late: what this process has seen is there all the same.
            return known if self.files.has_footer(known) else None
        top = max(versions)
        self._notice(branch, top, listed)
        if top == version and self._is_same(known, versions[version]):
            return self._whole(known, versions)
        stored = self.files.read(branch, top)
        if stored is None:
            return self._search(branch, None)  # somebody has given it back, or a vacuum has overtaken us
        if top == version + 1 and not stored.follows(known):
            self._doubted[branch] = known
            return known  # an orphan
        if top > version and self._is_made_here(known) and not self._carried.is_before(known, stored):
            raise self._taken_away(known)
        self._listed[branch] = stored.header.id, versions[top].modified
        return self._whole(stored, versions)

    def _list_from(self, branch: str, version: int) -> BranchListing | None:
        """Return what there is of a branch from a version on; None where one request can't tell that."""
        directory, after = names.commits_directory(branch), names.version_name(version - 1) if version else ""
        found = self.storage.objects.list_after(directory, after, _LISTED)
        if found is None:
            self._can_list_on = False
            return None
        self._has_listed_on = True
        listed = list(found)
        while len(found) == _LISTED:
            found = self.storage.objects.list_after(directory, listed[-1].name, _LISTED) or []
            listed += found
        return self._sorted_out(branch, listed)

    def _sorted_out(self, branch: str, found: Collection[Object]) -> BranchListing:
        listed = BranchListing.of(found)
        (self._stopped.add if listed.stops else self._stopped.discard)(branch)
        return listed

    def _notice(self, branch: str, top: int, listed: BranchListing) -> None:
        """Note whether others are about to commit: what they propose lies behind the version that they want, or wanted.

        That may be a few versions below the head by now, where somebody takes them faster than others learn of it.
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

    # --- versions that were taken twice: the server has begun to ignore conditions

    def _is_made_here(self, stored: Stored) -> bool:
        return self._head_caches.made.get(stored.header.branch) == stored.header.id

    def _taken_away(self, known: Stored) -> CorruptionError:
        """Return what to raise for a commit that this process has seen, and in whose place another one is now."""
        self.head_caches.stop()
        reason = f"commit {known.header.id.hex()} was here, and another one has its place"
        if known.header.branch in self._head_caches.made:  # who only reads can ask nothing
            reason += self._why(known)
        return CorruptionError(known.path, reason=f"{reason}: the repository was repaired, deleted or replaced")

    def _why(self, stored: Stored) -> str:
        """Ask the server anew whether it creates exclusively, since a commit has not the place that it should have."""
        self.storage.doubt()
        try:
            self._prove(stored)
        except OSError as error:
            return f" ({error})"
        return ""

    def _prove(self, suspect: Stored | None) -> None:
        """Raise `OSError` if the server may not create exclusively.

        If it does not, no process commits any more to the branch of a commit that may have another's place, or lack
        its own.
        """
        try:
            self.storage.wait_for_check()
        except NotExclusiveError:
            if suspect is not None:
                self._stop(suspect)
            raise

    def check_not_stopped(self, branch: str) -> None:
        self._list_all(branch)
        self._raise_if_stopped(branch)

    def _raise_if_stopped(self, branch: str) -> None:
        if branch in self._stopped:
            self.head_caches.stop()  # which may be of commits that a repair does not keep
            words = (
                "a commit has found that the server did not create objects exclusively, so that commits may have taken "
                "each other's places. No process commits until repo.verify(repair=True), or `txstore verify "
                "--repair`, has put them right. Ceph 16.2 does so in a bucket that keeps versions: suspend versioning "
                "first"
            )
            raise OSError(errno.EOPNOTSUPP, words, f"{self.storage.url}/{names.commits_directory(branch)}")

    def _check_creation(self, branch: str) -> None:
        """Raise `OSError` if a commit could take another's place, or some may have done so."""
        self._write_stop(branch)
        self._raise_if_stopped(branch)
        doubted = self._doubted.get(branch)
        if doubted is not None:
            self.storage.doubt()
        self._prove(doubted)
        self._doubted.pop(branch, None)

    def confirm(self, stored: Stored) -> None:
        self.storage.renew_check()  # if it took long
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
        """Stop all commits to a branch until it is repaired: every process that looks for its head sees this."""
        self._unwritten[stored.header.branch] = stored
        try:
            self._write_stop(stored.header.branch)
        except BaseException:  # Ctrl-C, say: no other process may know of it
            self._write_stop(stored.header.branch)
            raise
        self.head_caches.stop()

    def _write_stop(self, branch: str) -> None:
        """Leave what this process has to say; what could not be written is written at the next use."""
        if (stored := self._unwritten.get(branch)) is None:
            return
        self._stopped.add(branch)
        header = stored.header
        with contextlib.suppress(OSError):
            self.storage.objects.put(names.stop_path(branch, header.version, header.id), [header.id])
            del self._unwritten[branch]

    # --- turns

    def turns(self, branch: str) -> AbstractContextManager[Turns | None]:
        has_lines = self.storage.capabilities.makes_requests and self.identity.exists()
        return self._tickets.turns(branch) if has_lines else contextlib.nullcontext()

    @property
    def shows_tickets(self) -> bool:
        return self._can_list_on

    def head_that_was_met(self, branch: str) -> Stored | None:
        # Committers in line don't commit together: each needs what the one before has committed.
        self._is_contended[branch] = self._has_lost = False
        return self.head_to_follow(branch)

    def note_free(self, branch: str, look: Look) -> None:
        before = self._looks.get(branch)
        if before is None or before.monotonic < look.monotonic:
            self._has_looked(branch, look, before)

    def end_of(self, branch: str, version: int) -> End | None:
        try:
            return self.storage.read_tail(names.commit_path(branch, version), self.files.tail_size)
        except FileNotFoundError:
            return None

    def note_next(self, known: Stored, branch: str, version: int, end: End) -> Stored | None:
        newest, found = (
            self._newest.get(branch),
            self.files.decode(names.commit_path(branch, version), branch, version, *end),
        )
        is_next = found.follows(known) and newest is not None and newest.header.id == known.header.id
        if not is_next or found.header.group_commit is not None:
            return self.head(branch)
        self._newest[branch] = found
        return found

    # --- group commits

    def _whole(self, stored: Stored, there: Collection[int]) -> Stored:
        """Return the last commit of the group commit that a commit is of, when all of them are in their places.

        The one who leads does that at once, unless it has died. `there`: versions that are known to be taken.
        """
        group_commit = stored.header.group_commit
        if group_commit is None:
            return stored
        branch = stored.header.branch
        if abs(time.time() - stored.header.time / 1e6) < _RECENT:
            self._is_contended[branch] = True
            self._is_crowded[branch] = self._is_crowded.get(branch, False) or group_commit.length > _CROWD
        first = stored.header.version - group_commit.place
        low = min(there, default=first)
        missing = {version for version in range(max(first, low), first + group_commit.length) if version not in there}
        began = asked = time.monotonic()
        while missing and asked < began + _PATIENCE:
            listed = self._list_from(branch, min(missing)) if self._can_list_on else None
            missing = {version for version in missing if not self._is_there(branch, version, listed)}
            time.sleep((time.monotonic() - asked) / 2 if missing else 0.0)
            asked = time.monotonic()
        if missing:
            try:
                self._group_commits.complete(branch, first)
            except PermissionError:  # who may only read comes to what others have told to be made
                last = self.files.read(branch, min(missing) - 1)
                return stored if last is None else last
        last = (
            stored
            if group_commit.place + 1 == group_commit.length
            else self.files.read(branch, first + group_commit.length - 1)
        )
        if last is None:
            raise CorruptionError(stored.path, reason="what was decided with it is not there")
        self._take_along(last, first)
        return last

    def _is_there(self, branch: str, version: int, listed: BranchListing | None) -> bool:
        return self.storage.exists(names.commit_path(branch, version)) if listed is None else version in listed.versions

    def _take_along(self, last: Stored, first: int) -> None:
        """Read all of a group commit at once, if that is not at hand: its runs are many small ones."""
        before = last.header.runs[1:2]
        pack = before[0].pack if before else None
        if pack is None or self.storage.cache.find(pack.id, packfile.HEAD_SIZE, 1) is not None:
            return
        with contextlib.suppress(OSError, CorruptionError):  # each can be read by itself
            for each in self._group_commits.read(last.header.branch, first):
                self.storage.cache.keep(each.stored.header.id, 0, each.content)

    def list_from(self, branch: str, version: int) -> BranchListing:
        listed = self._list_from(branch, version)
        if listed is None:
            raise OSError(f"{self.storage.url}: it can't be listed from a name on")
        return listed

    def read_file(self, branch: str, version: int) -> GroupCommitMember | None:
        path = names.commit_path(branch, version)
        try:
            content = self.storage.objects.get(path)
        except FileNotFoundError:
            return None
        return GroupCommitMember(self.files.decode_only(path, branch, version, content, len(content)), content)

    def decided(self, found: Sequence[GroupCommitMember]) -> None:
        with self._loose_lock:
            for each in found:
                branch = each.stored.header.branch
                loose, newest = self._loose.setdefault(branch, []), self._newest.get(branch)
                last = loose[-1].stored if loose else newest
                if last is None or each.stored.header.version > last.header.version:
                    loose.append(each)
                    self.storage.cache.keep(each.stored.header.id, 0, each.content)

    def missing(self, branch: str, upto: int, there: Collection[int]) -> list[GroupCommitMember]:
        with self._loose_lock:  # else, of two threads that look at the first, one would take the second off
            loose, newest = self._loose.get(branch, []), self._newest.get(branch)
            while loose and (
                loose[0].stored.header.version in there
                or (newest and loose[0].stored.header.version <= newest.header.version)
            ):
                placed = loose.pop(0).stored
                if newest is None or placed.header.version > newest.header.version:
                    newest = self._newest[branch] = placed
            versions = [(each.stored.header.version, each) for each in loose]
            return [each for version, each in versions if version <= upto and version not in there]

    def first_unseen(self, branch: str) -> int:
        newest = self._newest.get(branch)
        return 0 if newest is None else newest.header.version + 1

    def _is_same(self, known: Stored, listed: Object) -> bool:
        """Tell whether a listed object is the one that a commit was read from, and not one made in its place.

        Objects never change: one that has the length and time that it had before is the same. Its time is learned when
        it is first listed; until then its length has to do, and that it is of this repository.
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
            above = self.files.read(branch, found.header.version + 1)
            if above is None or not above.follows(found):
                break
            found = above
        if found is known and not self.files.has_footer(known):
            return None
        # I10: below the oldest kept version there are gaps.
        if found is not None and self.oldest_kept.is_above(branch, found.header.version):
            return None
        return None if found is None else self._whole(found, range(known.header.version, found.header.version + 1))

    def _search(self, branch: str, newest: Stored | None) -> Stored | None:
        """Find the head in a listing of all versions."""
        versions = self._list_all(branch).versions
        for version in sorted(versions, reverse=True):
            if (found := self.files.read(branch, version)) is not None:
                return self._whole(found, versions)
        return None

    def _list_all(self, branch: str) -> BranchListing:
        return self._sorted_out(branch, self.storage.objects.list(names.commits_directory(branch)))

    def _keep(self, stored: Stored, tail: bytes) -> None:
        """Keep the end of a commit file, of which more is asked for next: the index of its run, and small values."""
        self.storage.cache.keep(stored.header.id, stored.footer.file_length - len(tail), tail)

    # --- taking a version

    def take_version(self, source: str, stored: Stored, *, joins: bool = False) -> Stored:
        branch = stored.header.branch
        self._check_creation(branch)
        self.storage.renew_check()
        try:
            return self._take_version(source, stored, joins=joins)
        except (VersionTakenError, OSError):
            raise  # it was not made
        except BaseException:
            self._doubted[branch] = stored
            raise

    def _take_version(self, source: str, stored: Stored, *, joins: bool) -> Stored:
        branch, content = stored.header.branch, self.storage.read_staged(source)
        look, began = self._looks.get(branch), Look.now()
        if joins and stored.header.fork is None and self.is_contended(branch):
            is_led = self._led.get(branch) == stored.header.version
            made = self._group_commits.commit(content, stored, look, is_led=is_led)
            self._is_contended[branch] = made is None or made.stored.header.group_commit is not None
            self._has_looked(branch, began, look)
            if made is None:
                raise VersionTakenError
            stored, content = made  # the file as it is now: with others' commits, or behind them
        else:
            if self._lets_others_pass(stored):
                raise VersionTakenError
            if self._loose.get(branch):
                self._group_commits.wait_for(branch, stored.header.version - 1)
            super().take_version(source, stored)
            self._has_looked(branch, began, look)
        self.confirm(stored)
        self._has_lost = False
        is_sure = self.storage.capabilities.makes_requests and look is not None and look.age < TRUSTED
        self._sure_of = stored.header.id if is_sure else None
        self.storage.forget_staged(source)  # it is still there if the answer was lost
        self._keep(stored, content[-TAIL:])
        self._head_caches.note(stored, content[-TAIL:])
        return stored

    def is_contended(self, branch: str) -> bool:
        return self._can_list_on and self._is_contended.get(branch, False)

    def is_crowded(self, branch: str) -> bool:
        return self._can_list_on and self._is_crowded.get(branch, False)

    def _lets_others_pass(self, stored: Stored) -> bool:
        """Let a group commit have the next version, once for each commit; return whether it is taken.

        A group is slower than a committer that takes versions alone, and would never have one beside a process that
        does so in a row.
        """
        branch, version = stored.header.branch, stored.header.version
        if not self.is_contended(branch) or stored.header.fork is not None or self._has_waited == stored.header.id:
            return False
        self._has_waited = stored.header.id
        is_taken = self._group_commits.let_pass(branch, version)
        if is_taken:
            self._looks.pop(branch, None)  # so that the head is looked for
        return is_taken

    def _read_back(self, header: Header, error: OSError) -> Stored | None:
        if is_refusal(error) and not isinstance(error, FileExistsError):
            return None  # who may not write may not be allowed to read, too: so it is not asked what is there
        if not isinstance(error, FileExistsError):
            return super()._read_back(header, error)
        branch, asked = header.branch, self._looks.pop(header.branch, None)
        # Who has met one other, once, tries again alone: that takes fewer trips than to ask who else there is.
        # But not where it was never seen that others can be looked for in that way.
        self._is_contended[branch] = self._has_lost and self._has_listed_on
        self._has_lost = True
        # committers that have met at a version should not meet at the next one, too
        if asked is not None and not self._can_list_on:
            time.sleep(random.uniform(0, min(asked.age, _LONGEST_PAUSE)))
        look, line = Look.now(), list[Stored]()
        try:
            for each in self.files.each(
                partial(self.files.read, branch), range(header.version, header.version + _LOOKED_AT)
            ):
                if each is None or (line and not each.follows(line[-1])):
                    break
                line.append(each)
        except (OSError, TxStoreError):
            return super()._read_back(header, error)  # which says what is wrong
        if not line:
            return super()._read_back(header, error)
        if line[0].header.parent_id == header.parent_id and len(line) < _LOOKED_AT:
            self._newest[branch] = line[-1]
            self._has_looked(branch, look, asked)
            group_commit = line[-1].header.group_commit
            self._is_contended[branch] |= (len(line) > 1 and self._has_listed_on) or group_commit is not None
            is_sure = asked is not None and asked.age < TRUSTED  # I10: that it is in history
            if is_sure and group_commit is not None and group_commit.place + 1 < group_commit.length:
                first = line[-1].header.version - group_commit.place
                decided = self._group_commits.read(branch, first)
                self.decided([each for each in decided if each.stored.header.version > line[-1].header.version])
        return line[0]

    def _has_looked(self, branch: str, look: Look, before: Look | None) -> None:
        """Note that the version above what is known of a branch was free, and, as the look before says, never taken.

        If that was too long ago, a vacuum may have freed the version since: then a listing has to say what is there.
        """
        if before is not None and before.age < TRUSTED:
            self._looks[branch] = look
        else:
            self._looks.pop(branch, None)

    def is_passed(self, stored: Stored) -> bool:
        return stored.header.id != self._sure_of and super().is_passed(stored)

    def let_stand(self, paths: Collection[str]) -> None:
        young = {found for found in map(names.parse_commit_path, paths) if found is not None}
        if not young or not self.storage.capabilities.makes_requests:
            return
        changed = [
            found.modified
            for branch in {branch for branch, _ in young}
            for found in self.storage.objects.list(names.commits_directory(branch))
            if (branch, names.parse_version(found.name)) in young and found.modified is not None
        ]
        if changed:
            # Its clock tells whole seconds as a rule.
            time.sleep(min(max(0.0, max(changed) + 1 + _STANDS - self.storage.now()), _STANDS + 1))

    def _move_aside(self, orphan: Stored) -> None:
        # What would have to be deleted could be somebody else's commit by then: nothing keeps the version as it was
        # read.
        reason = (
            "it does not follow the commit below it: somebody has copied or deleted objects, or the server did not "
            f"create them exclusively for a while{self._why(orphan)}"
        )
        raise CorruptionError(orphan.path, reason=reason)

    def not_taken(self, header: Header, error: OSError) -> OSError | CommitUnknownError:
        if is_refusal(error):
            return error
        # I3: the version is empty, but the server may yet come to a request that it has not answered.
        return CommitUnknownError(header.id.hex(), reason=f"the server did not confirm it ({error})")
