"""Writes `txstore/aio/faces.py` from the signatures and docstrings of the synchronous classes: `make aio`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "txstore"
MADE = PACKAGE / "aio" / "faces.py"

#: Of a store, what belongs to its transaction. The rest is for zarr, or is there under another name.
OF_A_TRANSACTION = {
    "url", "branch", "base", "staged_count", "changes", "diff", "move", "copy", "restore", "constraints", "views",
    "commit",
    "unchanged", "rollback", "latest", "set_reference", "set_references", "share", "shift", "move_chunks", "rely_on",
}  # fmt: skip
#: Properties that read nothing. The others become methods.
AT_HAND = {"url", "branch", "chunk_cache", "staged_count", "unchanged"}
#: Methods that are more than a call in a thread, and what they return instead.
BEGINS = {"transaction"}
FOLLOWS = {"follow"}
COMMITS = {"commit"}
MAPPINGS = {"Branches": "AsyncBranches", "Tags": "AsyncTags", "Constraints": "AsyncConstraints",
            "RepositoryViews": "AsyncRepositoryViews", "Views": "AsyncViews"}  # fmt: skip
#: By the type of what the synchronous method returns: what each element is.
LISTED = {
    "Log": "Commit",
    "list[LoggedOperation]": "LoggedOperation",
    "Log | list[LoggedOperation]": "Commit | LoggedOperation",
}

HEAD = '''"""The asynchronous face of repositories and transactions. `make aio` makes this file: do not change it."""

from __future__ import annotations

{imports}

if TYPE_CHECKING:
{of_types}

T = TypeVar("T")
'''

REPOSITORY = """A repository for tasks of an event loop: each method of `Repository`, in a thread of its own.

`await aio.open(url)` makes one, or `AsyncRepository(repo)` of a `Repository`, which is then `repository`. Any
number of tasks may share it. Errors are those of `Repository`. If a task is cancelled, it stops waiting at once;
what it has called goes on to its end in its thread. Functions that you pass, such as `progress`, are called in that
thread, except asynchronous ones, which get a store: these run as a task of your loop.
"""

TRANSACTION = """A transaction for tasks of an event loop: what `TxStore` offers beyond zarr, each in a thread.

`store` is the ordinary `TxStore`: give it to zarr, `zarr.api.asynchronous` and xarray. `async with` commits on a
clean exit and rolls back on an exception. If the task is cancelled while it commits, the commit goes on to its end:
`is_committing` tells whether it still runs, and `await outcome()` returns or raises what came of it.
"""

#: What the docstring of a method that is more than a call in a thread says first.
NOTES = {
    "transaction": "Begin a transaction when you `await` this or enter it, as an `AsyncTransaction` with this store.",
    "log": "Await this for a list, or read it page by page with `async for`.",
    "follow": "Iterate with `async for`. A thread waits meanwhile; it ends within a second when the iteration does.",
    "run": "`fn` is an asynchronous function. If this is cancelled, so is `fn`, and it is not tried again.",
    "bisect": "`test` is an asynchronous function.",
    "commit": "If this is cancelled, the commit goes on to its end: see `outcome`.",
}

MAPPING = {
    "AsyncBranches": ("Branches", "Commit", "At | None", "The branches of a repository, as `Repository.branches`."),
    "AsyncTags": ("Tags", "Commit", "At | None", "The tags of a repository, as `Repository.tags`."),
    "AsyncConstraints": (
        "Constraints", "Constraint", "Constraint", "The constraints of a repository or a transaction, by name.",
    ),
    "AsyncViews": ("Views", "ViewDefinition", "ViewDefinition", "The views of a transaction, by name."),
    "AsyncRepositoryViews": (
        "RepositoryViews", "DeclaredView", "ViewDefinition", "The views of a repository, by name.",
    ),
}  # fmt: skip


@dataclass
class Source:
    """A class of TxStore, and what its module imports."""

    module: str
    name: str
    kind: ast.ClassDef = field(init=False)
    imports: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        tree = ast.parse((PACKAGE / f"{self.module}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self.imports |= {alias.asname or alias.name: node.module or "" for alias in node.names}
        self.kind = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == self.name)

    def methods(self, names: set[str] | None = None) -> Iterator[ast.FunctionDef]:
        """Yield the public methods and properties, overloads included, in order."""
        for node in self.kind.body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            if node.name in names if names is not None else "classmethod" not in decorators(node):
                yield node


def decorators(node: ast.FunctionDef) -> set[str]:
    return {ast.unparse(each) for each in node.decorator_list}


def docstring(node: ast.FunctionDef | ast.ClassDef, indent: int, note: str = "") -> str:
    """The docstring without its examples, which are of the synchronous face."""
    told = re.sub(r"\n*Examples\n-{8}\n.*", "", ast.get_docstring(node) or "", flags=re.S)
    if note:
        first, _, rest = told.partition("\n\n")
        told = f"{first}\n\n{note}" + (f"\n\n{rest}" if rest else "")
    return textwrap.indent(f'"""{told}{chr(10) if chr(10) in told else ""}"""\n', " " * indent)


def forwarded(arguments: ast.arguments, instead: dict[str, str]) -> str:
    """The arguments of a call that passes on all parameters but `self`."""
    passed = [each.arg for each in [*arguments.posonlyargs, *arguments.args] if each.arg != "self"]
    if arguments.vararg is not None:
        passed.append(f"*{arguments.vararg.arg}")
    passed += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        passed.append(f"**{arguments.kwarg.arg}")
    return ", ".join(instead.get(each, each) for each in passed)


def called_back(arguments: ast.arguments) -> str | None:
    """Let the parameter that is called with a store be an asynchronous function; return its name."""
    for each in arguments.args:
        told = "" if each.annotation is None else ast.unparse(each.annotation)
        if found := re.fullmatch(r"Callable\[\[TxStore\], (\w+)\]", told):
            each.annotation = ast.parse(f"Callable[[TxStore], Awaitable[{found[1]}]]", mode="eval").body
            return each.arg
    return None


def method(node: ast.FunctionDef, of: str) -> Iterator[str]:
    """The lines of one method. `of` is the attribute that has the synchronous object."""
    name, found = node.name, decorators(node)
    returns = ast.unparse(node.returns) if node.returns is not None else "None"
    back = called_back(node.args)
    arguments = ast.unparse(node.args)
    told = docstring(node, 8, "" if name == "commit" and of != "store" else NOTES.get(name, ""))
    is_property = "property" in found
    passed = forwarded(node.args, {})
    call = f"self.{of}.{name}" + ("" if is_property else f"({passed})")
    function = f"lambda: {call}" if passed or is_property else f"self.{of}.{name}"
    if "overload" in found and returns in LISTED:
        yield f"    @overload\n    def {name}({arguments}) -> Listing[{LISTED[returns]}]: ...\n"
    elif "overload" in found:
        yield f"    @overload\n    async def {name}({arguments}) -> {returns}: ...\n"
    elif returns in MAPPINGS:
        yield f"    @property\n    def {name}(self) -> {MAPPINGS[returns]}:\n{told}"
        yield f"        return {MAPPINGS[returns]}(lambda: {call})\n"
    elif is_property and name in AT_HAND:
        yield f"    @property\n    def {name}(self) -> {returns}:\n{told}        return {call}\n"
    elif name in BEGINS:
        yield f"    def {name}({arguments}) -> Beginning[AsyncTransaction]:\n{told}"
        yield f"        return Beginning(AsyncTransaction, lambda: {call})\n"
    elif name in FOLLOWS:
        yield f"    def {name}({arguments}) -> AsyncGenerator[Commit, None]:\n{told}"
        yield "        return follow_branch(self.repository, branch, since, timeout)\n"
    elif returns in LISTED:
        yield f"    def {name}({arguments}) -> Listing[{LISTED[returns]}]:\n{told}"
        yield f"        return Listing(lambda: {call})\n"
    elif back is not None:
        call = f"self.{of}.{name}({forwarded(node.args, {back: 'called'})})"
        yield f"    async def {name}({arguments}) -> {returns}:\n{told}"
        yield f"        return await call_back(lambda called: {call}, {back})\n"
    elif of == "store" and returns == "TxStore":
        yield f"    async def {name}({arguments}) -> AsyncTransaction:\n{told}"
        yield f"        return AsyncTransaction(await call({function}))\n"
    elif of == "store" and name in COMMITS:
        yield f"    async def {name}({arguments}) -> {returns}:\n{told}"
        yield f"        return await self._committed(lambda: {call})\n"
    else:
        yield f"    async def {name}({arguments}) -> {returns}:\n{told}"
        result = f"await call({function})"
        yield f"        {'' if returns == 'None' else 'return '}{result}\n"


def opened(source: Source) -> Iterator[str]:
    """The function that opens a repository: the parameters of `Repository`."""
    node = next(each for each in source.kind.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    node.args.args = [each for each in node.args.args if each.arg != "self"]
    yield f"\n\nasync def open({ast.unparse(node.args)}) -> AsyncRepository:\n"
    told = docstring(source.kind, 4)
    yield told.replace("One TxStore repository.", "Open a repository. The parameters are those of `Repository`.", 1)
    yield f"    return AsyncRepository(await call(lambda: Repository({forwarded(node.args, {})})))\n"


def body() -> tuple[str, dict[str, str]]:
    repository, store = Source("repository", "Repository"), Source("store", "TxStore")
    sources = [Source("history/declared_constraints", "Constraints"), Source("history/tags", "Tags")]
    sources += [Source("views/faces", "Views"), Source("views/faces", "RepositoryViews")]
    sources += [Source("history/branches", "Branches"), store, repository]
    imports = {name: module for source in sources for name, module in source.imports.items()}
    imports |= {source.name: f"txstore.{source.module.replace('/', '.')}" for source in sources}
    lines = list(opened(repository))
    for made, (name, value, taken, told) in MAPPING.items():
        lines.append(f'\n\nclass {made}(AsyncMapping[{name}, {value}, {taken}]):\n    """{told}"""\n')
        source = next(each for each in sources if each.name == name)
        for node in source.methods():
            lines += ["\n", *method(node, "_open()")]
    lines.append(f"\n\nclass AsyncTransaction(TransactionBlock):\n{textwrap.indent(quoted(TRANSACTION), '    ')}")
    for node in store.methods(OF_A_TRANSACTION):
        lines += ["\n", *method(node, "store")]
    lines.append(f"\n\nclass AsyncRepository:\n{textwrap.indent(quoted(REPOSITORY), '    ')}")
    lines.append(
        "\n    def __init__(self, repository: Repository) -> None:\n        self.repository = repository\n"
        "\n    def __repr__(self) -> str:\n        return f'<AsyncRepository {self.url}>'\n"
    )
    for node in repository.methods():
        lines += ["\n", *method(node, "repository")]
    return "".join(lines), imports


def quoted(told: str) -> str:
    return f'"""{told}"""\n'


#: What the runtime has, and where.
RUNTIME = {
    "AsyncMapping": "txstore.aio.mappings",
    "AsyncGenerator": "collections.abc",
    "Awaitable": "collections.abc",
    "Beginning": "txstore.aio.blocks",
    "TransactionBlock": "txstore.aio.blocks",
    "Listing": "txstore.aio.calls",
    "TYPE_CHECKING": "typing",
    "TypeVar": "typing",
    "call": "txstore.aio.calls",
    "call_back": "txstore.aio.calls",
    "follow_branch": "txstore.aio.following",
    "overload": "typing",
}


def source() -> str:
    """Return what the file has to hold."""
    code, imports = body()
    imports |= RUNTIME
    tree = ast.parse(code)
    at_run_time = needed(tree) & imports.keys() | {"TYPE_CHECKING", "TypeVar"}
    in_types = (names(tree) & imports.keys()) - at_run_time - parameters(tree)

    def written(chosen: set[str]) -> list[str]:
        return [f"from {imports[name]} import {name}" for name in sorted(chosen)]

    head = HEAD.format(
        imports="\n".join(written(at_run_time)),
        of_types=textwrap.indent("\n".join(["import os", *written(in_types)]), "    "),
    )
    return formatted(head + code)


def names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def parameters(tree: ast.AST) -> set[str]:
    return {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def needed(tree: ast.AST) -> set[str]:
    """The names that the code uses when it runs: all but those of annotations and of its own parameters."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= {name for base in node.bases for name in names(base)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            run = [*node.body, *node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
            found |= {name for each in run for name in names(each)} - parameters(node.args)
    return found


def formatted(code: str) -> str:
    for arguments in (["check", "--select", "I", "--fix", "--quiet"], ["format"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(MADE), "-"]
        code = subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout
    return code


if __name__ == "__main__":
    MADE.write_text(source(), encoding="utf-8")
