"""Writes `txstore/aio/__init__.pyi`: for type checkers and editors, the methods that `txstore.aio` makes at run time.

setup.py calls it, where nothing may be installed that txstore needs: it reads source files, and imports none.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent
STUB = ROOT / "txstore" / "aio" / "__init__.pyi"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parsed(module: str) -> ast.Module:
    return ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8"))


def imports(*trees: ast.Module) -> dict[str, ast.ImportFrom | ast.Import]:
    """Return the import of each name that the modules import anywhere; the last one counts."""
    found: dict[str, ast.ImportFrom | ast.Import] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: ast.ImportFrom(node.module, [alias], 0) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: ast.Import([alias]) for alias in node.names}
    return found


def text(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node)


def decorators(node: Function) -> set[str]:
    return {text(each) for each in node.decorator_list}


def parameters(node: Function) -> list[ast.arg]:
    found = node.args
    return [*found.posonlyargs, *found.args, *found.kwonlyargs, *filter(None, (found.vararg, found.kwarg))]


def docstring(theirs: ast.FunctionDef | ast.ClassDef, ours: Function) -> str:
    """Return what `faces._described` makes of the two docstrings."""
    told = re.sub(r"\n*Examples\n-{8}\n.*", "", ast.get_docstring(theirs) or "", flags=re.DOTALL)
    first, _, rest = told.partition("\n\n")
    paragraphs = ["" if isinstance(theirs, ast.ClassDef) else first, ast.get_docstring(ours), rest]
    return "\n\n".join(filter(None, paragraphs))


def declared(
    like: Function, told: str, *, theirs: Function | None = None, returns: str = "", marks: Collection[str] = ()
) -> Function:
    """Return a function without its body, with the parameters of another one."""
    returns = returns or text(like.returns)
    # In a stub, `async def` would say that the generator has to be awaited.
    kind = ast.FunctionDef if returns.startswith("AsyncGenerator") else type(like)
    body: list[ast.stmt] = [ast.Expr(ast.Constant(textwrap.indent(told, " " * 8).strip()))] if told else []
    body.append(ast.Expr(ast.Constant(...)))
    result = ast.parse(returns, mode="eval").body
    return kind(like.name, (theirs or like).args, body, [ast.Name(mark) for mark in sorted(marks)], result)


def described(ours: Function, theirs: Function, told: str) -> Function:
    """Return ours with the parameters of theirs. Annotations are ours where they say more than `Any`."""
    said = {each.arg: each.annotation for each in parameters(ours) if text(each.annotation) not in ("", "Any")}
    for each in parameters(theirs):
        each.annotation = said.get(each.arg, each.annotation)
    returns = text(theirs.returns if text(ours.returns) == "Any" else ours.returns)
    marks = decorators(ours) & {"property"} | decorators(theirs) & {"overload"}
    if "overload" in marks and returns.startswith("Listing["):  # each overload lists something else
        elements = re.sub(r"list\[(\w+)\]", r"\1", text(theirs.returns))
        returns = "Listing[" + re.sub(r"\bLog\b", "Commit", elements) + "]"
    return declared(ours, told, theirs=theirs, returns=returns, marks=marks)


def methods(
    ours: dict[str, Function], theirs: ast.ClassDef, at_hand: set[str], left_out: set[str]
) -> Iterator[Function]:
    """Yield the methods that `faces._fill` gives a class, overloads included."""
    functions = [each for each in theirs.body if isinstance(each, ast.FunctionDef)]
    for name, group in groupby(functions, lambda each: each.name):
        *overloads, last = group
        if name.startswith("_") or name in left_out or decorators(last) & {"classmethod", "staticmethod"}:
            continue
        made = ast.parse("@property\ndef _() -> Any: ..." if name in at_hand else "async def _() -> Any: ...").body[0]
        assert isinstance(made, Function)
        made.name = name
        our = ours.get(name, made)
        yield from (described(our, each, docstring(last, our)) for each in overloads or [last])


def source() -> str:
    """Return what the file has to hold."""
    init, faces = parsed("txstore.aio.__init__"), parsed("txstore.aio.faces")
    assigned = {text(each.targets[0]): each for each in faces.body if isinstance(each, ast.Assign)}
    at_hand, left_out = (ast.literal_eval(assigned.pop(name).value) for name in ("AT_HAND", "LEFT_OUT"))
    calls = [each.value for each in faces.body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
    # _fill(AsyncRepository, Repository, ...), _described(open, Repository, ...)
    like = {text(each.args[0]): text(each.args[1]) for each in calls}
    trees = {name: parsed(str(getattr(imports(faces)[name], "module", ""))) for name in like.values()}
    classes = {each.name: each for tree in trees.values() for each in tree.body if isinstance(each, ast.ClassDef)}
    body: list[ast.stmt] = [*assigned.values()]  # type variables
    for node in faces.body:
        if isinstance(node, ast.ClassDef):
            ours = {each.name: each for each in node.body if isinstance(each, Function)}
            made = list(methods(ours, classes[like[node.name]], at_hand, left_out)) if node.name in like else []
            names = {each.name for each in made}
            kept = [each for each in ours.values() if each.name not in names]
            node.body = [each for each in node.body if not isinstance(each, Function)]
            node.body += [declared(each, ast.get_docstring(each) or "", marks=decorators(each)) for each in kept]
            node.body += made
            body.append(node)
        elif isinstance(node, Function) and node.name in like:
            kind = classes[like[node.name]]
            begin = next(each for each in kind.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
            del begin.args.args[0]  # self
            body.append(described(node, begin, docstring(kind, node)))
    found = imports(*trees.values(), faces)
    used = {each.id for node in body for each in ast.walk(node) if isinstance(each, ast.Name)}
    head = [each for each in init.body if getattr(each, "module", "") != "txstore.aio.faces"]  # its names are here
    head[1:1] = [found[name] for name in sorted(used & found.keys())]
    return ast.unparse(ast.fix_missing_locations(ast.Module([*head, *body], []))) + "\n"


if __name__ == "__main__":
    wanted = source()
    if not STUB.exists() or STUB.read_text(encoding="utf-8") != wanted:  # a type checker may be reading it
        STUB.write_text(wanted, encoding="utf-8")
