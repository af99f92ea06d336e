"""Follows a branch for a task, in one thread at a time. A cancelled follower leaves no thread that waits."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator

from txstore.aio.calls import call, result_of, start
from txstore.commit import Commit
from txstore.history.find import At
from txstore.history.follow import follow
from txstore.repository import Repository


async def follow_branch(
    repository: Repository, branch: str, since: At | None, timeout: float | None
) -> AsyncGenerator[Commit, None]:
    """Yield commits as `Repository.follow` does. Its thread ends, within a second, when the iteration does."""
    given_up = threading.Event()
    engine = repository.engine
    commits = await call(
        lambda: follow(engine.commits, engine.branch(branch), since, timeout, is_given_up=given_up.is_set)
    )
    reading = None
    try:
        while True:
            reading = start(lambda: next(commits, None))
            found = await result_of(reading)
            if found is None:
                return
            yield found
    finally:
        given_up.set()
        if reading is None or reading.done():
            commits.close()
        else:
            reading.add_done_callback(lambda _: commits.close())
