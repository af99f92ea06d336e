"""The code of a page of the how-to, to be run as a reader's program: again, late, beside another, or killed."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import txstore
from tests.tools import blocks
from tests.tools.waiting import TIMEOUT

#: A program waits here until all have been started, so that they run at once.
_TOGETHER = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"


@dataclass(frozen=True)
class Recipe:
    """Blocks of Python of a page, in its order; programs are made of one of them, and of what a test adds."""

    page: str
    directory: Path

    def code(self, number: int = 0, *, before: str | None = None) -> str:
        """Return a block; `before` is a text at which it is cut off, because the test does the rest in its own way."""
        page = blocks.read(blocks.ROOT / self.page)
        code = "\n".join([block for block in page.blocks if block.language == "python"][number].code) + "\n"
        if before is None:
            return code
        assert before in code
        return code[: code.index(before)]

    def start(self, code: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore::FutureWarning", "-c", code], cwd=self.directory, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(blocks.ROOT), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, code: str) -> str:
        """Run a program to its end, and return what it has printed."""
        return _ended(self.start(code), "")

    def kill_behind(self, version: int, repo: txstore.Repository, code: str) -> None:
        """Start a program, and kill it once it, or one before it, has committed this version."""
        process = self.start(code)
        try:
            for commit in repo.follow(since=-1, timeout=60):
                if commit.version >= version:
                    break
        finally:
            process.kill()
            process.communicate()

    def race(self, code: str, ends: list[str]) -> list[str]:
        """Run programs at once, which have the same code, but for their ends; return what each has printed."""
        started = [self.start(f"{code}\n{_TOGETHER}{end}") for end in ends]
        for each in started:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n", each.stderr and each.stderr.read()
        for each in started:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        return [_ended(each, None) for each in started]


def _ended(process: subprocess.Popen[str], given: str | None) -> str:
    printed, errors = process.communicate(given, timeout=TIMEOUT)
    assert process.returncode == 0, errors
    return printed
