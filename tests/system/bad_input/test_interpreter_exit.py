"""Interpreters and forked children that end with a transaction open."""

import os
import subprocess
from pathlib import Path

import pytest

import txstore
from tests.tools.disk import run_python, tree

pytestmark = pytest.mark.long

STAGE = """
import sys, txstore
repo = txstore.Repository(sys.argv[1])
store = repo.transaction()
for i in range(5):
    store[f"b/{i}"] = bytes(100_000)
"""


@pytest.fixture
def filled(repo) -> txstore.Repository:
    with repo.transaction("first") as store:
        store["a"] = b"1"
    return repo


@pytest.mark.parametrize("error", ["raise RuntimeError('stop')", "sys.exit(3)"])
def test_staged_writes_and_an_error_at_exit(filled, error):
    before = tree(Path(filled.url))
    done = run_python(STAGE + error, filled.url)
    assert done.returncode != 0
    assert "NOT COMMITTED" in done.stderr
    assert tree(Path(filled.url)) == before


def test_an_error_in_a_block_rolls_back_without_a_warning(filled):
    before = tree(Path(filled.url))
    code = "import sys, txstore\nwith txstore.TxStore(sys.argv[1]) as store:\n    store['b'] = b'2'\n    sys.exit(3)\n"
    done = run_python(code, filled.url)
    assert done.returncode == 3
    assert done.stderr == ""
    assert tree(Path(filled.url)) == before


# --- fork
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@forks
@pytest.mark.parametrize("how", ["os._exit(0)", "sys.exit(0)", "pass", "raise SystemExit", "1 / 0"])
def test_a_forked_interpreter_that_ends_inside_the_block(filled, how):
    """However the child leaves, the parent's block is whole, and only the parent commits."""
    code = f"""
import os, sys, txstore
with txstore.Repository(sys.argv[1]).transaction("by the parent") as store:
    store["b"] = bytes(200_000)
    store["c"] = b"2"
    child = os.fork()
    if child == 0:
        {how}
    else:
        os.waitpid(child, 0)
        store["d"] = b"3"
if child == 0:
    sys.exit(0)
"""
    done = run_python(code, filled.url)
    assert done.returncode == 0
    assert "NOT COMMITTED" not in done.stderr
    assert [commit.message for commit in filled.log()] == ["by the parent", "first"]
    assert sorted(filled.snapshot()) == ["a", "b", "c", "d"]
    assert list(Path(filled.url, ".staging").iterdir()) == []


@forks
def test_a_lock_is_not_held_by_a_child_that_was_forked_meanwhile(filled):
    """The child has the description of the lock file open; that must not keep others from committing."""
    code = """
import os, sys, time, txstore
repo = txstore.Repository(sys.argv[1])
with repo.engine.storage.lock("locks/commit"):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
with repo.transaction("second") as store:
    store["b"] = b"1"
print("committed", flush=True)
os.killpg(0, 9)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(txstore.__file__).parents[1])}
    command = [os.sys.executable, "-c", code, filled.url]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)
    assert child.communicate(timeout=30)[0] == b"committed\n"
