"""Type checkers see of `txstore.aio` what there is at run time, and that is the synchronous classes, for `await`."""

import ast
import inspect
from typing import Any

import pytest

import aio_stub
import txstore
from txstore import aio
from txstore.aio import faces
from txstore.history.branches import Branches

STUB = ast.parse(aio_stub.source())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def functions(body: list[ast.stmt]) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """By name; of overloads the last."""
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def check(function: Any, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """The stub has the parameters, the annotations and the docstring that the function has."""
    signature = inspect.signature(function)
    assert inspect.iscoroutinefunction(function) == isinstance(node, ast.AsyncFunctionDef)
    assert inspect.getdoc(function) == ast.get_docstring(node)
    if "overload" not in aio_stub.decorators(node):
        told = {each.arg: ast.unparse(each.annotation) for each in aio_stub.parameters(node) if each.annotation}
        annotated = {each: found.annotation for each, found in signature.parameters.items() if each != "self"}
        assert told == {each: ast.unparse(ast.parse(found)) for each, found in annotated.items()}
        assert aio_stub.text(node.returns) == signature.return_annotation


@pytest.mark.parametrize("name", [name for name in aio.__all__ if name.startswith("Async")])
def test_the_stub_of_a_class(name: str) -> None:
    kind, stub = getattr(aio, name), functions(CLASSES[name].body)
    found = {name: member for name, member in vars(kind).items() if not name.startswith("_")}
    assert {name for name in stub if not name.startswith("_")} == found.keys()
    for each, member in found.items():
        assert isinstance(member, property) == ("property" in aio_stub.decorators(stub[each]))
        check(member.fget if isinstance(member, property) else member, stub[each])


def test_a_repository_is_opened_with_the_same_parameters() -> None:
    assert parameters(aio.open) == parameters(txstore.Repository)
    check(aio.open, functions(STUB.body)["open"])


def test_branches_have_the_methods_of_the_synchronous_ones() -> None:
    public = {name: found for name, found in vars(Branches).items() if not name.startswith("_")}
    for name, there in public.items():
        assert parameters(getattr(aio.AsyncBranches, name)) == parameters(there)
        assert inspect.getdoc(getattr(aio.AsyncBranches, name)) == inspect.getdoc(there)


def test_the_names_that_are_treated_otherwise_are_names_of_methods() -> None:
    there = {name for kind in (txstore.Repository, txstore.TxStore) for name in vars(kind)}
    assert there >= faces.AT_HAND | faces.LEFT_OUT
