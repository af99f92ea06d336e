"""Retention: who commits folds old commits together now and then, so that files and bytes stay bounded."""

import warnings
from datetime import timedelta

import pytest

import txstore
from tests.tools.inside import staged
from tests.tools.upkeep import bytes_of_head, content, oldest_kept_of, put, rewrite, tree
from txstore.maintenance import vacuum as retention
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


@pytest.mark.long
def test_it_waits_until_it_is_worth_it(open_repo, monkeypatch):
    """A fold looks at every key: with many keys, it comes after many commits, or much that was written."""
    folds = []
    real = retention.optimize
    monkeypatch.setattr(retention, "optimize", lambda *args, **kw: (folds.append(1), real(*args, **kw))[1])
    repo = open_repo(durability="none", retention=1)
    put(repo, {f"large/{i}": b"" for i in range(20_000)})
    put(repo, {"a": b""})
    open_repo(durability="none").vacuum(keep=1)
    for number in range(3 * STEP):
        put(repo, {"a": b"%d" % number})
    assert not folds, "20,000 keys are looked at every 312 commits"
    for number in range(3 * STEP):
        put(repo, {"a": b"-%d" % number})
    assert len(folds) == 1
    # Or where as much was written as a quarter of the keys.
    for number in range(STEP + 1):
        put(repo, {f"large/{i}": b"%d" % number for i in range(100)})
    assert len(folds) == 2


def test_a_fold_that_fails_fails_no_commit(open_repo, monkeypatch):
    repo = open_repo(durability="none", retention=1)

    def fail(*_):
        raise OSError(28, "No space left on device")

    link = LocalStorage.link
    monkeypatch.setattr(LocalStorage, "link", fail)  # into packs/
    with pytest.warns(RuntimeWarning, match="were not folded"):
        model = rewrite(repo, STEP + 5)
    assert content(repo) == model
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model |= rewrite(repo, STEP + 5, size=200)
    assert content(repo) == model
    assert oldest_kept_of(repo) == 0
    monkeypatch.setattr(LocalStorage, "link", link)
    model |= rewrite(repo, STEP + 5, size=300)
    assert content(repo) == model
    assert oldest_kept_of(repo) > 0
    assert staged(repo) == []


def test_it_goes_with_a_store_that_is_sent(open_repo):
    import pickle

    repo = open_repo(durability="none", retention=7)
    put(repo, {"a": b"1"})
    assert pickle.loads(pickle.dumps(repo.snapshot()))._engine.retention == 7
