"""The blocks of code on a page: found, and made into one script that has each line where the page has it.

What a page does not show is said in comments of HTML:

- `<!-- run first:` and code to `-->`: run where it stands, to make what the next blocks need;
- `<!-- not run: reason -->` before a block;
- `<!-- needs: module -->` before a block: run where the module is installed;
- `<!-- page needs: module, module -->`: the whole page is.
"""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What is run of a page; other languages are for reading.
RUN = {"python", "console", "{code-cell} python"}
FENCE = re.compile(r"^```+(.*)$")
COMMENT = re.compile(r"^<!-- (not run|needs|page needs): (.+) -->$")
FIRST = "<!-- run first:"


@dataclass(frozen=True)
class Block:
    line: int  # of its first line of code, from 0
    language: str  # "" where the page says none
    code: list[str]
    left_out: str | None = None  # why it is not run
    needs: str | None = None  # a module


@dataclass(frozen=True)
class Page:
    path: Path
    blocks: list[Block]
    needs: list[str]

    @property
    def wanted(self) -> list[Block]:
        """Blocks that can be run here."""
        return [
            block
            for block in self.blocks
            if block.language in RUN and block.left_out is None and (block.needs is None or is_there(block.needs))
        ]

    def script(self) -> str:
        lines = [""] * (max((block.line + len(block.code) for block in self.wanted), default=0) + 1)
        lines[0] = "from tests.tools.blocks import console as _console"
        for block in self.wanted:
            code = list(_commands(block.code)) if block.language == "console" else _plain(block.code)
            lines[block.line : block.line + len(code)] = code
        return "\n".join(lines) + "\n"


def is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def read(path: Path) -> Page:
    blocks: list[Block] = []
    needs: list[str] = []
    said: dict[str, str] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if comment := COMMENT.match(line):
            if comment[1] == "page needs":
                needs += comment[2].split(", ")
            else:
                said[comment[1]] = comment[2]
        elif line == FIRST:
            end = lines.index("-->", at)
            blocks.append(Block(at, "python", lines[at:end]))
            at = end + 1
        elif fence := FENCE.match(line):
            end = lines.index("```", at)
            blocks.append(Block(at, fence[1].strip(), lines[at:end], said.get("not run"), said.get("needs")))
            said = {}
            at = end + 1
        elif line.strip():
            said = {}
    return Page(path, blocks, needs)


def _commands(lines: list[str]) -> Iterator[str]:
    """Lines of a terminal, as Python: what follows a prompt is run, what is printed is for reading."""
    for line in lines:
        yield f"_console({line[2:]!r})" if line.startswith("$ ") else ""


def _plain(lines: list[str]) -> list[str]:
    """Lines of a notebook without its magic."""
    return ["" if line.startswith("%") else line for line in lines]


def console(command: str) -> None:
    subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True)


def environment(base: dict[str, str], scratch: Path) -> dict[str, str]:
    """What a page's script runs in: `txstore` and `python` are those that are tested, home is the scratch directory."""
    programs = scratch / ".programs"
    programs.mkdir(parents=True)
    for name, arguments in {"txstore": "-m txstore ", "python": ""}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        program.chmod(0o755)
    return {
        **base,
        "HOME": str(scratch),
        "MPLBACKEND": "Agg",
        "PATH": f"{programs}:{base['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore::DeprecationWarning",  # of threads beside a fork: zarr has some
    }
