"""Arguments as conditions see them: guarded paths and URLs in their one spelling.

A rule that says `args.path.startsWith("secret/")` must not be passed by `./secret/x` or `a/../secret/x`. What a guard
would refuse is left as it is: the guard refuses it. Links are not followed; the workspace does that when it opens.
"""

from __future__ import annotations

from collections.abc import Callable

from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.tool import ArgumentRole
from toolhub_service.guards.paths import judge_path
from toolhub_service.guards.urls import parse_url


def spelled_arguments(planned: PlannedCall) -> JsonObject:
    """The call's arguments, in a new object when the tool has guarded paths or URLs."""
    if not planned.spec.guarded:
        return planned.args
    args = dict(planned.args)
    for argument in planned.spec.guarded:
        spell = _SPELLINGS.get(argument.role)
        if spell is not None and argument.name in args:
            args[argument.name] = _spelled(args[argument.name], spell)
    return args


def _spelled(value: JsonValue, spell: Callable[[str], str]) -> JsonValue:
    if isinstance(value, list | tuple):
        return [_spelled(item, spell) for item in value]
    if not isinstance(value, str):
        return value
    try:
        return spell(value)
    except ToolFailure:
        return value


def _spell_url(url: str) -> str:
    return str(parse_url(url))


_SPELLINGS: dict[ArgumentRole, Callable[[str], str]] = {
    ArgumentRole.PATH_READ: judge_path,
    ArgumentRole.PATH_WRITE: judge_path,
    ArgumentRole.WORKING_DIRECTORY: judge_path,
    ArgumentRole.URL: _spell_url,
    ArgumentRole.METHOD: str.upper,
}
