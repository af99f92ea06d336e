"""Retention: who commits folds old commits together now and then, so that files and bytes stay bounded."""

import warnings
from datetime import timedelta

import pytest

import txstore
from tests.tools.inside import staged
from tests.tools.upkeep import bytes_of_head, content, oldest_kept_of, put, rewrite, tree
from txstore.maintenance.vacuum import STEP
from txstore.storage.local import LocalStorage


def files(repo: txstore.Repository) -> list[str]:
    return [path for path in tree(repo) if path.startswith(("commits/", "packs/"))]


@pytest.mark.parametrize("wrong", [0, -3, timedelta(-1), "30d", True, 1.5])
def test_what_is_no_retention(tmp_path, wrong):
    with pytest.raises((ValueError, TypeError), match="retention="):
        txstore.Repository(tmp_path / "data.tx", retention=wrong)


@pytest.mark.long
@pytest.mark.parametrize("keep", [1, 30, 200])
def test_files_and_bytes_stay_bounded(open_repo, keep):
    repo = open_repo(durability="none", retention=keep)
    most_files = most_bytes = 0
    model: dict[str, bytes] = {}
    folds = set()
    for number in range(1_000):
        some = {f"a/{(number * 7 + i) % 50}": b"%06d" % number * 100 for i in range(2)}
        put(repo, some)
        model |= some
        folds.add(oldest_kept_of(repo))
        if number % 20 == 19 and number > 2 * keep:
            most_files = max(most_files, len(files(repo)))
            most_bytes = max(most_bytes, sum(tree(repo).values()))
    assert content(repo) == model
    assert most_files <= keep + 2 * STEP + 20
    assert most_bytes <= (keep + 2 * STEP + 20) * 4096 + 3 * bytes_of_head(repo)
    assert len(folds) >= (1_000 - keep) // STEP - 2
    # What was promised is there: every one of the newest commits.
    versions = [commit.version for commit in repo.log()]
    assert len(versions) >= keep
    for version in versions[:: max(1, keep // 10)]:
        assert len(content(repo, version)) <= 50


def test_by_age(open_repo):
    repo = open_repo(durability="none", retention=timedelta(days=1))
    rewrite(repo, 3 * STEP)
    assert oldest_kept_of(repo) == 0
    short = open_repo(durability="none", retention=timedelta(0))
    rewrite(short, 2 * STEP, size=200)
    assert oldest_kept_of(repo) > 3 * STEP
    assert len(files(repo)) < 2 * STEP


def test_a_session_that_goes_on(open_repo):
    """It stands at its last commit, not where it began."""
    repo = open_repo(durability="none", retention=3)
    store = txstore.TxStore(repo)
    for number in range(4 * STEP):
        store.mapping["a"] = b"%d" % number
        store.commit()
    assert len(files(repo)) < 2 * STEP


def test_a_fold_that_fails_fails_no_commit(open_repo, monkeypatch):
    repo = open_repo(durability="none", retention=1)

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "link", fail)  # into packs/
        with pytest.warns(RuntimeWarning, match="were not folded"):
            model = rewrite(repo, STEP + 5)
        assert content(repo) == model
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model |= rewrite(repo, STEP + 5, size=200)
        assert content(repo) == model
        assert oldest_kept_of(repo) == 0
    model |= rewrite(repo, STEP + 5, size=300)
    assert content(repo) == model
    assert oldest_kept_of(repo) > 0
    assert staged(repo) == []
