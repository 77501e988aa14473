"""Small wrong versions of a source file, one change each (DeMillo, Lipton and Sayward, "Hints on test data selection",
1978; the operators are those of "sufficient mutation", Offutt et al., 1996, as far as Python has them).

Of a statement only what decides is changed: no annotation, no docstring, no text of a message, nothing that is read by
type checkers alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}

Key: TypeAlias = tuple[str, str, str, str, str]
"""File, function, code, before, after."""


@dataclass(frozen=True, slots=True)
class Mutant:
    file: str
    """From the folder of the server's package."""
    function: str
    """Qualified; empty for the module itself."""
    operator: str
    code: str
    """The line on which the change begins, without blanks around it."""
    before: str
    """The code that is changed, on one line."""
    after: str
    line: int
    """Of the change, from 1."""
    source: str
    """The whole file with the change."""

    @property
    def key(self) -> Key:
        """Names it wherever the code around it moves to."""
        return self.file, self.function, self.code, self.before, self.after


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """All of them, in the order of the file."""
    tree = ast.parse(source)
    encoded = source.encode()
    starts, lines = [0], encoded.splitlines(keepends=True)
    for line in lines:
        starts.append(starts[-1] + len(line))
    for function, node in _nodes(tree, ""):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        for operator, after in _changes(node):
            text = f"({after})" if isinstance(node, ast.expr) else after
            changed = (encoded[:begin] + text.encode() + encoded[end:]).decode()
            code = lines[node.lineno - 1].decode().strip()
            yield Mutant(file, function, operator, code, ast.unparse(node), after, node.lineno, changed)


def _nodes(node: ast.AST, function: str) -> Iterator[tuple[str, ast.stmt | ast.expr]]:
    """What may be changed, with the function that it lies in."""
    for child in _looked_at(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _nodes(child, f"{function}.{child.name}".lstrip("."))
            continue
        if isinstance(child, ast.stmt | ast.expr) and function:
            yield function, child
        yield from _nodes(child, function)


def _looked_at(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from (default for default in (*node.args.defaults, *node.args.kw_defaults) if default is not None)
        yield from node.body
    elif isinstance(node, ast.ClassDef):
        yield from node.body
    elif isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield node.value
    elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    elif not isinstance(node, ast.JoinedStr):
        yield from ast.iter_child_nodes(node)


def _changes(node: ast.stmt | ast.expr) -> Iterator[tuple[str, str]]:
    """The operator and the code that stands there instead."""
    match node:
        case ast.stmt():
            yield from _changed_statement(node)
        case ast.Compare(ops=[op, *others]) if type(op) in COMPARISONS:
            yield "compare", ast.unparse(ast.Compare(node.left, [COMPARISONS[type(op)](), *others], node.comparators))
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "boolop", ast.unparse(ast.BoolOp(other, node.values))
        case ast.UnaryOp(op=ast.Not()):
            yield "not", ast.unparse(node.operand)
        case ast.BinOp() if type(node.op) in ARITHMETIC and not _is_text(node):
            yield "arithmetic", ast.unparse(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))
        case ast.Constant(value=bool() | int() | float() as value):
            yield "constant", str(not value) if isinstance(value, bool) else str(value + 1)
        case ast.IfExp():
            yield "branch", ast.unparse(ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse))


def _changed_statement(node: ast.stmt) -> Iterator[tuple[str, str]]:
    match node:
        # None is as false as False, and mypy distinguishes them; that False becomes True is another mutant.
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "False"):
            yield "return", "return None"
        case ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Delete():
            yield "remove", "pass"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "remove", "pass"


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
