"""`txstore tx`: lists, commits and rolls back named transactions, from any process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstore.cli.options import (
    JsonOption,
    MessageOption,
    TransactionArgument,
    YesOption,
)
from txstore.cli.output import (
    command,
    commit_as_dict,
    local_time,
    print_json,
    print_table,
    tell,
)
from txstore.errors import shown_keys
from txstore.format.display import readable_size

if TYPE_CHECKING:
    from txstore.repository import Repository
    from txstore.transactions.participants.named import NamedTransaction, Participant

app = typer.Typer(help="List, commit and roll back named transactions.", no_args_is_help=True)

#: States of a process in a transaction: it may still stage; it has left; it died before it left.
_ATTACHED, _SEALED, _LOST = "attached", "sealed", "lost"


@command(app, "list")
def list_transactions(repo: Repository, as_json: JsonOption = False) -> None:
    """List the open transactions: neither committed nor rolled back."""
    found = repo.transactions()
    if as_json:
        print_json([_as_dict(transaction) for transaction in found])
        return
    columns = ["name~", "begun", "by?", "attached>", "sealed>", "lost>", "size>", "message~"]
    print_table(columns, map(_row, found))


@command(app)
def show(
    repo: Repository,
    name: TransactionArgument,
    keys: Annotated[bool, typer.Option("--keys", help="List the keys, and the process that staged each.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the processes of a transaction, and what they have staged so far."""
    staged = repo.engine.existing(name)
    found = next((each for each in repo.transactions() if each.id == staged.id), None)
    changes, overtaken = staged.changes(), staged.lifecycle.overtaken()
    by = {label: len(each) for label, each in changes["participants"].items()}
    shown: dict[str, Any] = {} if found is None else _as_dict(found)
    shown |= {
        "set": len(changes["set"]),
        "deleted": len(changes["deleted"]),
        "deleted_below": changes["deleted_below"],
        "overtaken": overtaken,
        "staged_by": changes["participants"] if keys else by,
    }
    if as_json:
        print_json(shown)
        return
    if found is not None:
        shown["time"] = local_time(found.time, seconds=True)
    for field in ("name", "id", "branch", "owner", "time", "message"):
        tell(f"{field:10}{shown.get(field, '-')!s}")
    tell(
        f"staged    {shown['set']:,} keys set, {shown['deleted']:,} deleted, "
        f"{len(shown['deleted_below']):,} paths cleared"
    )
    tell(f"conflicts {_conflicts(overtaken)}")
    tell()
    processes = _processes(() if found is None else found.participants)
    print_table(
        ["process~", "state", "keys>", "bytes>"],
        [(label, ", ".join(states), f"{by.get(label, 0):,}", f"{size:,}") for label, states, size in processes],
    )
    if keys:
        tell()
        for label, staged_keys in changes["participants"].items():
            for key in staged_keys:
                tell(f"{label}  {key}")


@command(app)
def commit(
    repo: Repository,
    name: TransactionArgument,
    message: MessageOption = None,
    allow_lost: Annotated[
        bool, typer.Option("--allow-lost", help="Also commit what processes staged that died before they left.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Commit a transaction after all processes have left it. The default message is the one it was begun with."""
    staged = repo.engine.existing(name)
    try:
        snapshot = staged.commit(message, allow_lost=allow_lost)
    finally:
        staged.lifecycle.leave()
    made = None if snapshot is None else snapshot.commit
    if as_json:
        print_json(None if made is None else commit_as_dict(made))
    elif made is None:
        tell(f"{name} has ended without a commit: it changed nothing and has no message")
    else:
        statistics = made.statistics
        deleted = statistics["keys_deleted"] + statistics["prefixes_deleted"]
        told = f"{statistics['keys_set']:,} keys set, {deleted:,} deleted, {statistics['bytes_set']:,} bytes"
        tell(f"{made} {made.id}: {told}")


@command(app)
def rollback(
    repo: Repository,
    name: TransactionArgument,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Drop everything staged in a transaction, after all processes have left it."""
    if as_json and not yes:
        raise typer.BadParameter("--json can't ask for confirmation: give --yes, too")
    staged = repo.engine.existing(name)
    try:
        count = staged.staged_count
        if not yes:
            typer.confirm(f"Drop {count:,} staged keys of {name}?", abort=True, err=True)
        staged.rollback()
    finally:
        staged.lifecycle.leave()
    if as_json:
        print_json({"name": name, "id": staged.id, "dropped": count})
    else:
        tell(f"{name} was rolled back: {count:,} staged keys were dropped")


# --- printing


def _as_dict(transaction: NamedTransaction) -> dict[str, Any]:
    participants = [asdict(each) | {"state": _state(each)} for each in transaction.participants]
    return asdict(transaction) | {"time": transaction.time.isoformat(), "participants": participants}


def _row(transaction: NamedTransaction) -> tuple[str, ...]:
    states = [_state(participant) for participant in transaction.participants]
    return (
        transaction.name,
        local_time(transaction.time),
        transaction.owner,
        *(f"{states.count(state):,}" for state in (_ATTACHED, _SEALED, _LOST)),
        readable_size(sum(participant.bytes for participant in transaction.participants)),
        transaction.message.partition("\n")[0],
    )


def _state(participant: Participant) -> str:
    return _SEALED if participant.sealed else _ATTACHED if participant.alive else _LOST


def _processes(participants: tuple[Participant, ...]) -> Iterator[tuple[str, list[str], int]]:
    """Yield each process, its states (a process may join several times), and the bytes it staged."""
    for label in dict.fromkeys(map(str, participants)):
        own = [each for each in participants if str(each) == label]
        yield label, sorted(set(map(_state, own))), sum(each.bytes for each in own)


def _conflicts(overtaken: list[str]) -> str:
    if not overtaken:
        return "none so far"
    return f"{len(overtaken):,} keys were changed by other commits since it began: {shown_keys(overtaken)}"
