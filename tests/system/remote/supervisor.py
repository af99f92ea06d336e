"""Runs a server for as long as one of its users lives: `python supervisor.py FOLDER COMMAND...`.

A user is a process whose number is the name of a file in the directory FOLDER/users. So nothing is left running when
the tests are killed, and several workers of one run can share a server without one of them being in charge.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock

LOOK_SECONDS = 0.5


def is_used(users: Path) -> bool:
    for name in os.listdir(users):
        try:
            os.kill(int(name), 0)
        except ProcessLookupError:
            continue
        return True
    return False


def is_over(folder: Path) -> bool:
    """Tell whether nobody uses the server; if so, who comes next starts another."""
    if is_used(folder / "users"):
        return False
    with filelock.FileLock(folder / "lock"):  # or somebody could come just now, and find a server that is about to end
        if is_used(folder / "users"):
            return False
        (folder / "about.json").unlink(missing_ok=True)
        return True


def main(folder: Path, command: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the users get it, too
    server = subprocess.Popen(command, start_new_session=True)
    try:
        while server.poll() is None and (folder / "users").exists() and not is_over(folder):
            time.sleep(LOOK_SECONDS)
    finally:
        server.terminate()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
