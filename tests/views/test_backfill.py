"""Views of arrays that are large already: derived by several commits, continued after a crash, then kept by each."""

from typing import Any
from unittest import mock

import numpy as np
import pytest

import txstore
from tests.tools.killed import killed_after
from tests.views.images import commit, halved, image, put, value
from txstore.deriving.derivation import Derivation
from txstore.views import Coarsen
from txstore.views.following import DeclaredView

LARGE = np.arange(32.0 * 32).reshape(32, 32)
FOLLOWS = Coarsen("image/0", "image/{level}", (2, 2), 2, when="follow")
KEPT = Coarsen("image/0", "image/{level}", (2, 2), 2)
STEP = 3 * 4 * 4 * 8  # bytes: three chunks of (4, 4) float64, of 16 and 4 in the two levels


class StoppedError(Exception):
    """Ends an update where a process might have died."""


@pytest.fixture
def view(repo: txstore.Repository) -> DeclaredView:
    commit(repo, image(values=LARGE), v=FOLLOWS)
    return repo.views["v"]


def fits(repo: txstore.Repository) -> bool:
    first, second, third = (value(repo, f"image/{level}") for level in range(3))
    return (second == halved(first)).all() and (third == halved(second)).all()


def stopped_after(commits: int, view: DeclaredView, step: int = STEP) -> None:
    """Update, and stop before the next commit."""
    left, make = commits, txstore.TxStore.commit

    def counted(store: txstore.TxStore, *arguments: Any) -> Any:
        nonlocal left
        if not left:
            raise StoppedError
        left -= 1
        return make(store, *arguments)

    with mock.patch.object(txstore.TxStore, "commit", counted), pytest.raises(StoppedError):
        view.update(step=step)


def computed(action: Any) -> int:
    """Return how many chunks are computed."""
    with mock.patch.object(Derivation, "_chunk", autospec=True, side_effect=Derivation._chunk) as chunk:
        action()
    return chunk.call_count


def test_each_commit_has_a_part(repo: txstore.Repository, view: DeclaredView) -> None:
    before = repo.head()
    made = view.update(step=STEP)
    assert before is not None
    assert made == repo.head()
    assert made.version - before.version == 7  # 20 chunks, three in each
    assert view.is_current()
    assert fits(repo)
    assert view.update(step=STEP) is None


@pytest.mark.parametrize("done", range(1, 7))
def test_an_update_goes_on_where_another_one_stopped(repo: txstore.Repository, view: DeclaredView, done: int) -> None:
    stopped_after(done, view)
    assert not view.is_current()
    assert view.as_dict()["as_of"] is None
    assert computed(lambda: txstore.Repository(repo.url).views["v"].update()) == 20 - 3 * done
    assert view.is_current()
    assert fits(repo)


def test_what_sources_get_meanwhile_is_derived_at_the_end(repo: txstore.Repository, view: DeclaredView) -> None:
    stopped_after(2, view)
    commit(repo, put(np.s_[0, 0], 1000))  # of a chunk that is derived
    commit(repo, put(np.s_[31, 31], 1000))  # of one that is not
    assert computed(view.update) == 14 + 2 + 2
    assert view.is_current()
    assert fits(repo)


@pytest.mark.parametrize("done", [2, 5])
def test_all_parts_are_of_one_commit(repo: txstore.Repository, view: DeclaredView, done: int) -> None:
    """Else outputs that are of two commits would be current as soon as the sources are again as they were."""
    before = repo.head()
    stopped_after(done, view)
    commit(repo, put(np.s_[:], -1))
    stopped_after(7 - done, view)  # all parts are there; what the sources got meanwhile is not derived yet
    place = view.as_dict()["as_of"]
    assert place["id"] == before.id
    assert not view.is_current()
    with repo.transaction() as store:
        store.restore("image/0", at=before)
    assert view.is_current()
    assert fits(repo)


def test_an_output_that_somebody_writes_to_begins_anew(repo: txstore.Repository, view: DeclaredView) -> None:
    stopped_after(3, view)
    commit(repo, put(np.s_[0, 0], -1, "image/1"))
    assert computed(view.update) == 20
    assert view.is_current()
    assert fits(repo)


def test_a_commit_that_a_vacuum_has_expired_begins_anew(repo: txstore.Repository, view: DeclaredView) -> None:
    stopped_after(3, view)
    commit(repo, put(np.s_[0, 0], 1000))
    repo.vacuum(keep=1)
    view.update(step=STEP)
    assert view.is_current()
    assert fits(repo)


@pytest.mark.parametrize("step", [0, -1])
def test_steps_that_are_none(view: DeclaredView, step: int) -> None:
    with pytest.raises(ValueError, match="1 or more bytes"):
        view.update(step=step)


_UPDATE = f"""
import sys, time, txstore
from txstore.deriving.derivation import Derivation
put = Derivation._compute
Derivation._compute = lambda *arguments: (put(*arguments), time.sleep(0.05))
txstore.Repository(sys.argv[1]).views["v"].update(step={STEP})
"""


@pytest.mark.parametrize("commits", [2, 5])
def test_killed(repo: txstore.Repository, view: DeclaredView, commits: int) -> None:
    killed_after(commits, repo, _UPDATE)
    assert not view.is_current()
    assert computed(view.update) <= 20 - 3 * (commits - 1)
    assert fits(repo)


# --- kept by each commit from then on


def test_declaring_it_with_a_change_derives_that(repo: txstore.Repository, view: DeclaredView) -> None:
    view.update()
    assert computed(lambda: commit(repo, put(np.s_[0, 0], 1000), v=KEPT)) == 2
    assert fits(repo)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_declaring_it_where_it_is_not_current_derives_everything(repo, view, is_stopped):
    if is_stopped:
        stopped_after(2, view)
    else:
        view.update()
        commit(repo, put(np.s_[0, 0], 1000))
    assert computed(lambda: commit(repo, v=KEPT)) == 20
    assert fits(repo)


def test_declaring_it_while_another_process_writes(repo: txstore.Repository, view: DeclaredView) -> None:
    """The outputs fit the base, and not the head that the commit finds."""
    view.update()
    with repo.transaction() as store:
        store.views["v"] = KEPT
        commit(repo, put(np.s_[0, 0], 1000))
    assert fits(repo)
