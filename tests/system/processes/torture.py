"""Processes that lock, stage and commit, and are killed at any point of it: `python -m tests.system.processes.torture`.

One process forks writers, or those of `torture_roles`, and kills them at random moments; several such families may work
on one repository, each perhaps in a pid namespace of its own. A writer increments the values of a few keys under their
locks, so that every commit must be there, none may conflict, and no lock may stay behind. It says what it is about to
commit, and what it has committed.
"""

import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Sequence

import numpy as np

import txstore
import txstore.format.grids  # with zarr: before writers are forked, not in each of them
from tests.system.processes.torture_roles import ROLES, delay_operations, marker

KEYS = 12
WRITERS = ("write",) * 3
LOCK_TIMEOUT = 60.0  # seconds; whoever waits so long waits for a lock that nobody gives up
SPOKEN = 0.8  # of the writers are killed only after they have said something: the others may still be beginning
LONGEST_LIFE = 0.05  # seconds, from then on


def key(number: int) -> str:
    return f"x/c/{number}"


def write(url: str, seed: int, tell: int) -> None:
    """Commit until killed. Each commit's message is a name that nobody else gives."""
    repo = txstore.Repository(url, durability="none")
    chance = random.Random(seed)
    delay_operations(repo, chance)
    for number in range(1 << 30):
        mine = sorted(chance.sample(range(KEYS), chance.randint(1, 3)))
        tx = repo.engine.begin(message=f"{seed}.{number}", lock={"x": np.array(mine)}, lock_timeout=LOCK_TIMEOUT)
        for each in mine:
            tx[key(each)] = b"%d" % (int(tx[key(each)]) + 1)
        tx[marker(f"{seed}.{number}")] = b"%d" % len(mine)
        os.write(tell, f"begun {seed}.{number}\n".encode())
        tx.commit()
        os.write(tell, f"done {seed}.{number}\n".encode())


class Doomed:
    """A process that does what its role says until it is killed."""

    def __init__(self, url: str, seed: int, role: str) -> None:
        self.role = role
        self.pipe, theirs = os.pipe()
        self.told = b""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ROLES.get(role, write)(url, seed, theirs)
            except BaseException as error:  # noqa: BLE001 - the parent is told, whatever it is
                os.write(theirs, f"failed {type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(1)
        os.close(theirs)

    def listen(self) -> None:
        while select.select([self.pipe], [], [], 0)[0] and (more := os.read(self.pipe, 1 << 16)):
            self.told += more

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.listen()
        os.close(self.pipe)


def run_family(url: str, seed: int, rounds: int, roles: Sequence[str]) -> list[str]:
    """Fork a process for each role, and kill one `rounds` times, for another to follow; return all that they said."""
    chance = random.Random(seed)
    names = iter(range(seed, 1 << 62, 1 << 20))
    alive = [Doomed(url, next(names), role) for role in roles]
    said = b""
    for _ in range(rounds):
        doomed = alive.pop(chance.randrange(len(alive)))
        if chance.random() < SPOKEN:
            select.select([doomed.pipe], [], [], LOCK_TIMEOUT)
        time.sleep(chance.uniform(0, LONGEST_LIFE))
        for each in alive:
            each.listen()
        doomed.kill()
        said += doomed.told
        alive.append(Doomed(url, next(names), doomed.role))
    for each in alive:
        each.kill()
        said += each.told
    return said.decode().splitlines()


if __name__ == "__main__":
    json.dump(run_family(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(",")), sys.stdout)
