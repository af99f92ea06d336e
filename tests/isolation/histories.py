"""What transactions did, as their clients saw it: the input of the checker.

Three kinds of objects, named by the first letter of their key:

- `l/...`, a list: each transaction appends elements that nobody else appends, to what it has read;
- `r/...`, a register: written blindly, with values that nobody else writes;
- `s/<directory>/<name>`, a member of a set: there or not. Those that the setup makes may be removed, others are only
  made: so a reader that finds it absent tells which version that is. Listings read all members of a directory at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

#: The process number of the transaction that begins a history.
SETUP = -1


class Op(NamedTuple):
    """`kind` is one of read, append, write; make, remove; list.

    `value` is of a list a tuple, of a register bytes or None, of a listing a frozenset of keys; `key` of a listing is
    the directory.
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


def seen(op: Op, state: dict[str, Any]) -> Any:
    """Return what a read should have found in a state."""
    if op.kind == "list":
        return frozenset(key for key in state if key.startswith(op.key + "/"))
    return state.get(op.key, {"l": (), "r": None, "s": False}[op.key[0]])
