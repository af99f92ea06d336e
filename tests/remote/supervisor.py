"""Runs a server for as long as one of its users lives: `python supervisor.py USERS COMMAND...`.

A user is a process whose number is the name of a file in the directory USERS. So nothing is left running when the tests
are killed, and several workers of one run can share a server without one of them being in charge.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LOOK_SECONDS = 0.5


def is_used(users: Path) -> bool:
    for name in os.listdir(users):
        try:
            os.kill(int(name), 0)
        except ProcessLookupError:
            continue
        return True
    return False


def main(users: Path, command: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the users get it, too
    server = subprocess.Popen(command, start_new_session=True)
    try:
        while server.poll() is None and users.exists() and is_used(users):
            time.sleep(LOOK_SECONDS)
    finally:
        server.terminate()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
