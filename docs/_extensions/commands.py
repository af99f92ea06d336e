"""The directive `commands`: every command of the command line, from the program itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from txstore.cli.main import app as program


def _plain(text: str | None) -> str:
    """Return help in one line of Markdown: what looks like markup of a terminal is code, a pipe ends no cell."""
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|").replace("<", "&lt;").strip()


def _parameters(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            names, told = record
            yield f"`{' '.join(names.split())}`", _plain(told)


def _described(command: Any, name: str, context: Any, level: int) -> Iterator[str]:
    inner = type(context)(command, parent=context, info_name=name.rsplit(maxsplit=1)[-1])
    yield f"{'#' * level} {name}"
    yield ""
    yield from (line.strip() for line in (command.help or "").splitlines())
    yield ""
    if subcommands := getattr(command, "commands", None):
        for each in sorted(subcommands):
            yield from _described(subcommands[each], f"{name} {each}", inner, level + 1)
        return
    pieces = " ".join(command.collect_usage_pieces(inner))
    yield from ("```text", f"{name} {pieces}", "```", "")
    rows = list(_parameters(command, inner))
    if rows:
        yield from ("| name | what it is |", "|---|---|")
        for names, told in rows:
            yield f"| {names} | {told} |"
        yield ""


class CommandsDirective(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        root = typer.main.get_command(program)
        context = root.make_context("txstore", [], resilient_parsing=True)
        lines: list[str] = []
        commands: dict[str, Any] = vars(root)["commands"]
        for name in sorted(commands):
            lines += _described(commands[name], f"txstore {name}", context, 2)
        made = nodes.Element()
        self.state.nested_parse(StringList(lines, "commands"), self.content_offset, made, match_titles=True)
        return made.children


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("commands", CommandsDirective)
    return {"parallel_read_safe": True}
