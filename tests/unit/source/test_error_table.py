"""The tables of errors and reasons hold for every place that raises one: a check of the syntax tree, never a source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import toolhub_service
from toolhub.v1 import error_pb2
from toolhub_service.domain.errors.kinds import ERROR_KINDS, ErrorKind
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.errors.spec import COMMON_DETAILS, HubReason, StartReason

PACKAGE = Path(toolhub_service.__file__).parent
NOT_DETAILS = {"kind", "message", "retryable", "retry_after_s", "violations", "details", "upstream", "blames_upstream"}
RAISING = {"refuse", "ToolError", "Verdict", "replace", "_with"}
"""What carries details: refusals, errors, and the verdicts of the policy that become errors."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Site:
    """One call that makes an error."""

    place: str
    kinds: frozenset[str]
    """Those that it names; empty: a variable does."""
    details: frozenset[str]
    retryable: ast.expr | None


@dataclass(frozen=True)
class Facts:
    """What one reading of all the source found; the trees themselves are not kept: they fill the collector's heap."""

    sites: list[Site]
    failures: list[tuple[str, HubReason, frozenset[str]]]
    """(place, reason, metadata) of every HubFailure and RpcFailure that names its reason."""
    words: set[object]
    """Keywords, constants and declared names outside the tables."""
    attributes: set[str]
    """`name.attribute`, as written."""


@cache
def facts() -> Facts:
    found = Facts([], [], set(), set())
    for path in sorted(PACKAGE.rglob("*.py")):
        name, tree = path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())
        nodes = list(ast.walk(tree))
        if name != "domain/errors/failure.py":
            found.sites.extend(sites_of(name, nodes))
        found.failures.extend(failures_of(name, nodes))
        found.attributes.update(
            f"{node.value.id}.{node.attr}"
            for node in nodes
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        )
        if name not in {"domain/errors/kinds.py", "domain/errors/spec.py"}:
            found.words.update(word for node in nodes for word in words_of(node))
    return found


def words_of(node: ast.AST) -> Iterator[object]:
    if isinstance(node, ast.keyword):
        yield node.arg
    elif isinstance(node, ast.Constant):
        yield node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def sites_of(name: str, nodes: list[ast.AST]) -> Iterator[Site]:
    functions = {node.name: node for node in nodes if isinstance(node, Function)}
    around = {id(call): function for function in functions.values() for call in ast.walk(function)}
    for call in nodes:
        if not isinstance(call, ast.Call) or called(call) not in RAISING:
            continue
        parts = [*call.args, *(word.value for word in call.keywords if word.arg == "kind")]
        kinds = frozenset(
            node.attr
            for part in parts
            for node in ast.walk(part)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ErrorKind"
        )
        words = {word.arg: word.value for word in call.keywords if word.arg is not None}
        if called(call) in {"Verdict", "replace"} and "details" not in words:
            continue
        names = set(words) - NOT_DETAILS if called(call) == "refuse" else set()
        open_parts = [words["details"]] if "details" in words else []
        open_parts += [word.value for word in call.keywords if word.arg is None]
        if called(call) == "_with":
            open_parts += call.args[2:]
        inside = None if called(call) == "replace" else around.get(id(call))
        for part in open_parts:
            names |= keys(part, inside, functions)
        yield Site(f"{name}:{call.lineno}", kinds, frozenset(names), words.get("retryable"))


def called(call: ast.Call) -> str:
    return getattr(call.func, "id", "") or getattr(call.func, "attr", "")


def keys(part: ast.expr, function: Function | None, functions: dict[str, Function]) -> set[str]:
    """Text keys of the dictionaries that the expression is made of, through variables and functions of the module."""
    found: set[str] = set()
    for node in ast.walk(part):
        if isinstance(node, ast.Dict):
            found |= {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
        elif (
            isinstance(node, ast.Call) and called(node) in functions and function not in (None, functions[called(node)])
        ):
            for inner in ast.walk(functions[called(node)]):
                if isinstance(inner, ast.Dict):
                    found |= keys(inner, functions[called(node)], functions)
        elif isinstance(node, ast.Name) and function is not None:
            found |= assigned(node.id, function, functions)
    return found


def assigned(name: str, function: Function, functions: dict[str, Function]) -> set[str]:
    """Keys of what the function puts into a variable; of its `**name`, what callers in the module pass."""
    found: set[str] = set()
    for node in ast.walk(function):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            value = getattr(node, "value", None)
            if isinstance(target, ast.Name) and target.id == name and isinstance(value, ast.Dict):
                found |= keys(value, None, functions)
            elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == name:
                found |= {target.slice.value} if isinstance(target.slice, ast.Constant) else set()  # type: ignore[arg-type]
    if function.args.kwarg is not None and function.args.kwarg.arg == name:
        own = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
        for caller in functions.values():
            for call in ast.walk(caller):
                if isinstance(call, ast.Call) and called(call) == function.name:
                    found |= {word.arg for word in call.keywords if word.arg} - own
    return found


def test_every_kind_has_a_row_in_the_order_of_the_contract() -> None:
    assert list(ERROR_KINDS) == list(ErrorKind)
    assert [f"ERROR_KIND_{kind.value}" for kind in ErrorKind] == error_pb2.ErrorKind.keys()[1:]


def test_call_sites_are_found() -> None:
    assert len(facts().sites) > 150
    assert {site.place.partition("/")[0] for site in facts().sites} > {
        "adapters",
        "budget",
        "guards",
        "policy",
        "stores",
        "tools",
    }


def test_details_of_each_call_site_are_named_in_the_table() -> None:
    assert {site.place: missing for site in facts().sites if (missing := site.details - named_for(site))} == {}


def named_for(site: Site) -> set[str]:
    """Names of details that errors of this site may have."""
    kinds = [ErrorKind(kind) for kind in site.kinds] or list(ErrorKind)
    if ErrorKind.OUTCOME_UNKNOWN in kinds:  # it carries the details of the kind it would have been
        kinds = list(ErrorKind)
    return {name for kind in kinds for name in ERROR_KINDS[kind].detail_names} | COMMON_DETAILS


def test_every_detail_in_the_table_is_a_word_of_the_code() -> None:
    declared = COMMON_DETAILS | {name for spec in ERROR_KINDS.values() for name in spec.detail_names}
    assert declared - facts().words == set()


def test_no_call_site_repeats_what_the_table_states_of_retrying() -> None:
    repeated = []
    for site in facts().sites:
        if isinstance(site.retryable, ast.Constant) and len(site.kinds) == 1:
            (kind,) = site.kinds
            if site.retryable.value is ERROR_KINDS[ErrorKind(kind)].retryable:
                repeated.append(site.place)
    assert repeated == []


def failures_of(name: str, nodes: list[ast.AST]) -> Iterator[tuple[str, HubReason, frozenset[str]]]:
    tables: dict[str, type[HubReason]] = {"Reason": Reason, "StartReason": StartReason}
    for call in nodes:
        if isinstance(call, ast.Call) and called(call) in {"HubFailure", "RpcFailure"} and call.args:
            reason = call.args[0]
            if isinstance(reason, ast.Attribute) and ast.unparse(reason.value) in tables:
                names = {word.arg for word in call.keywords if word.arg} - {"retry_after_s", "field_violations"}
                for part in call.args[2:]:
                    names |= keys(part, None, {})
                yield f"{name}:{call.lineno}", tables[ast.unparse(reason.value)][reason.attr], frozenset(names)


def test_metadata_of_every_failed_rpc_is_named_in_the_table() -> None:
    assert [found for found in facts().failures if not found[2] <= found[1].metadata] == []


def test_every_reason_is_used() -> None:
    known = {f"{type(reason).__name__}.{reason.name}" for reason in (*Reason, *StartReason)}
    assert known - facts().attributes == set()


def test_a_reason_is_a_name_on_the_wire() -> None:
    declared = [*Reason.__members__.items(), *StartReason.__members__.items()]
    assert len(dict(declared)) == len(declared)
    assert all(reason.name == name for name, reason in declared), "no row is that of another reason"
    assert all(name.isupper() and len(name) <= 63 for name, _ in declared)
