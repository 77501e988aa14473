"""What a call reads, writes, asks and runs, as conditions of rules see it.

Both views come from the roles that the tool declares for its arguments (`ToolSpec.guarded`), with paths and URLs in
normal form: a rule that says `args.path.startsWith("secret/")` must not be bypassed by `./secret/x` or `a/../secret/x`,
and one about a folder must not be bypassed by a tool that names its path `destination`. What a guard would refuse stays
unchanged: the guard refuses it. Links are not followed; the workspace does that when it opens a file.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.tool import ArgumentRole
from toolhub_service.guards.paths import check_path
from toolhub_service.guards.urls import parse_url
from toolhub_service.policy.arguments import words

WORKSPACE: Final = "."
"""The normal form of the whole workspace."""


class CallFacts(NamedTuple):
    """The variable `call` of a condition. Empty for a tool that declares no roles, such as one of an MCP server."""

    reads: list[str]
    """Paths of the workspace, each a file or a folder with all below it."""
    writes: list[str]
    """Paths that are created, changed, moved or deleted; as in `reads`."""
    urls: list[str]
    commands: list[str]
    """Program and arguments as one line, quoted as for a POSIX shell where a word needs it."""


def facts_of(planned: PlannedCall) -> CallFacts:
    """Return what the call's guarded arguments say; each list in the order of the tool's arguments."""
    facts = CallFacts([], [], [], [])
    for argument in planned.spec.guarded:
        value = planned.args.get(argument.name)
        if value is None:
            continue
        role = argument.role
        if role is ArgumentRole.PATH_READ:
            facts.reads.extend(_texts(_spell(value, check_path)))
        elif role is ArgumentRole.PATH_WRITE:
            facts.writes.extend(_texts(_spell(value, check_path)))
        elif role is ArgumentRole.URL:
            facts.urls.extend(_texts(_spell(value, normalize_url)))
        elif role is ArgumentRole.COMMAND:
            # A command is confined to the workspace, not to the paths that it names.
            facts.reads.append(WORKSPACE)
            facts.writes.append(WORKSPACE)
            facts.commands.extend(_command_line(value))
    return facts


def spelled_arguments(planned: PlannedCall) -> JsonObject:
    """Return the call's arguments, in a new object when the tool has guarded paths or URLs."""
    if not planned.spec.guarded:
        return planned.args
    args = dict(planned.args)
    for argument in planned.spec.guarded:
        spell = _SPELLINGS.get(argument.role)
        # An absent name stays absent: `has(args.path)` in a condition must not see a null.
        if spell is not None and argument.name in args:
            args[argument.name] = _spell(args[argument.name], spell)
    return args


def overlaps(path: str, folder: str) -> bool:
    """Return whether a path is the folder, lies in it, or contains it: whoever reads, moves or deletes `a` reaches
    `a/b`. Raises ToolFailure for a folder that is no path of a workspace."""
    inner, outer = path.rstrip("/"), _normal_folder(folder)
    if WORKSPACE in (inner, outer) or inner == outer:
        return True
    return inner.startswith(f"{outer}/") or outer.startswith(f"{inner}/")


@lru_cache(maxsize=1_024)
def _normal_folder(folder: str) -> str:
    return check_path(folder)


def normalize_url(url: str) -> str:
    """Return the normal form of RFC 3986 §6.2.2. Raises ToolFailure."""
    return str(parse_url(url))


def _spell(value: JsonValue, spell: Callable[[str], str]) -> JsonValue:
    if isinstance(value, list | tuple):
        return [_spell(item, spell) for item in value]
    if not isinstance(value, str):
        return value
    try:
        return spell(value)
    except ToolFailure:
        return value


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _command_line(value: JsonValue) -> Iterator[str]:
    try:
        yield shlex.join(words(value))
    except ToolFailure:
        yield from _texts(value)


_SPELLINGS: Final[dict[ArgumentRole, Callable[[str], str]]] = {
    ArgumentRole.PATH_READ: check_path,
    ArgumentRole.PATH_WRITE: check_path,
    ArgumentRole.WORKING_DIRECTORY: check_path,
    ArgumentRole.URL: normalize_url,
    ArgumentRole.METHOD: str.upper,
}
