"""What transactions did, as their clients saw it: the input of the checker.

Three kinds of objects, named by the first letter of their key:

- `l/...`, a list: each transaction appends elements that nobody else appends, to what it has read;
- `r/...`, a register: written blindly, with values that nobody else writes. `r/e/...` is an element of a chunk;
- `s/<directory>/<name>`, a member of a set: there or not, made by one transaction at most. Listings read all members of
  a directory at once; whether there are any tells of all of them only if there are none.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from txstore import Repository

#: The operations that read.
READS = ("read", "list", "any")

#: Process numbers: of the transaction that begins a history, of what reads all in the end, and of what changes nothing.
SETUP, LAST, OPTIMIZE = -1, -2, -3


class Op(NamedTuple):
    """`kind` is one of read, append, write; make, remove; list, any, clear.

    `value` is of a list a tuple, of a register bytes or None, of a listing a frozenset of keys, of any a bool, and of
    clear the keys that were there; `key` of these three is the directory.
    """

    kind: str
    key: str
    value: Any = None


class Txn(NamedTuple):
    """One transaction. Of one that nothing was published of, `commit` is None; it may have read all the same."""

    id: int
    process: int
    ops: tuple[Op, ...]
    base: int  # seq
    commit: int | None = None  # seq
    aborted: bool = False
    is_last: bool = False  # it began when all others had ended

    def __str__(self) -> str:
        return f"T{self.id}"


def optimize(repo: Repository) -> list[Txn]:
    """Optimize a repository; return the transaction that this is, which changes nothing, if there was any use in it."""
    commit = repo.optimize()
    return [] if commit is None else [Txn(-commit.seq, OPTIMIZE, (), commit.seq - 1, commit.seq)]


def merge(repo: Repository, ago: int) -> list[Txn]:
    """Merge a branch that begins some commits ago, and has changed what nobody looks at; return what this is."""
    head = repo.head()
    name = f"aside{head.seq}"
    repo.branches[name] = max(0, head.version - ago)
    with repo.begin(branch=name) as transaction:
        transaction[f"aside/{name}"] = b"1"
    commit = repo.merge(name)
    del repo.branches[name]
    return [Txn(-commit.seq, OPTIMIZE, (), commit.seq - 1, commit.seq)]  # type: ignore[union-attr]


def replay(history: list[Txn]) -> dict[int, dict[str, Any]]:
    """Return the content of the repository after each commit, by seq: what the committed operations amount to."""
    state: dict[str, Any] = {}
    states = {0: state}
    for txn in sorted((txn for txn in history if txn.commit is not None), key=lambda txn: txn.commit or 0):
        state = dict(state)
        for op in txn.ops:
            apply(op, state)
        states[txn.commit or 0] = state
    return states


def apply(op: Op, state: dict[str, Any]) -> None:
    match op.kind:
        case "append":
            state[op.key] = (*state.get(op.key, ()), op.value)
        case "write":
            state[op.key] = op.value
        case "make":
            state[op.key] = True
        case "remove":
            state.pop(op.key, None)
        case "clear":
            for key in op.value:
                state.pop(key, None)


def written(op: Op) -> Collection[str]:
    """Return the keys that an operation writes."""
    if op.kind in READS:
        return ()
    return op.value if op.kind == "clear" else (op.key,)


def seen(op: Op, state: dict[str, Any]) -> Any:
    """Return what a read should have found in a state."""
    below = frozenset(key for key in state if key.startswith(op.key + "/"))
    if op.kind != "read":
        return below if op.kind == "list" else bool(below)
    return state.get(op.key, {"l": (), "r": None, "s": False}[op.key[0]])
