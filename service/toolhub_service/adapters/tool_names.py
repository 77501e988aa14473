"""Names of remote tools in the hub: `source/path.verb`, made from names that follow no common grammar.

MCP hardly restricts the names of tools (SEP-986 only recommends a grammar). A character outside the hub's grammar is
replaced, never dropped, so that different names stay different: ASCII becomes `_`, anything else its code point
(`u641c`), which also makes hidden characters visible. Of names that still look alike (`skeleton`), all but one end in
digits of their sha256.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from msgspec import structs

from toolhub_service.adapters.upstream import one_line
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.source import Definition
from toolhub_service.registry.names import NAME_MAX_CHARS, check_name, skeleton

# A longer name of a remote tool is refused: nobody writes it by hand, and every call would carry it.
OWN_NAME_MAX_CHARS: Final = 256

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")
_ALLOWED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_DIGEST_CHARS: Final = 8


class Unnamed(Exception):
    """Something has no name that the hub can use; `problem` is a sentence for operators."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def full_name(source: str, own_name: str) -> str:
    """Return `source/path.verb` for a tool that its source calls `own_name` (not empty): at most 128 characters."""
    path = own_name if _PLAIN.fullmatch(own_name) else ".".join(_word(word) for word in own_name.split("."))
    room = NAME_MAX_CHARS - len(source) - 1
    # The digest distinguishes long names with the same beginning.
    return f"{source}/{path}" if len(path) <= room else _append_suffix(f"{source}/{path}", _digest_of(own_name))


def _digest_of(own_name: str) -> str:
    return hashlib.sha256(own_name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]


def _append_suffix(name: str, suffix: str) -> str:
    return f"{name[: NAME_MAX_CHARS - len(suffix) - 1].rstrip('.-')}_{suffix}"


def known_name(source: str, own_name: str, what: str) -> str:
    """Return `full_name` if it is valid in the hub; otherwise raise Unnamed. `what` begins the sentence, such as `A
    tool`."""
    name = full_name(source, own_name)
    try:
        check_name(name)
    except HubFailure as refused:
        raise Unnamed(f"{what} named `{one_line(own_name, 80)}` was left out: {refused.message}.") from refused
    return name


def _word(word: str) -> str:
    """Return one of the words between dots, in the hub's grammar."""
    spelled = "".join(char if char in _ALLOWED else _spell_char(char) for char in word)
    return f"_{spelled}" if not spelled or spelled[0] == "-" else spelled


def _spell_char(char: str) -> str:
    return "_" if char.isascii() else f"u{ord(char):04x}"


_SUFFIX: Final = "suffix"


def keep_apart(definitions: Iterable[Definition], problems: list[str]) -> list[Definition]:
    """Return the definitions of one source by their own names, under names that no reader confuses.

    Of several names that look alike the plainest stays as it is; the others get a suffix that depends on their own name
    only. `problems` gets a sentence for each definition that is left out, as it is listed twice.
    """
    alike: dict[str, dict[str, Definition]] = {}
    for definition in definitions:
        own_name = definition.spec.resource_id
        group = alike.setdefault(skeleton(definition.spec.name), {})
        if group.setdefault(own_name, definition) is not definition:
            problems.append(f"The tool `{one_line(own_name, 80)}` is listed twice; the first one is offered.")
    groups = [sorted(group.values(), key=_plainness) for group in alike.values()]
    kept = {skeleton(group[0].spec.name): group[0] for group in groups}
    for other in (other for group in groups for other in group[1:]):
        own_name = other.spec.resource_id
        suffixed = with_suffix(other, _digest_of(own_name))
        if kept.setdefault(skeleton(suffixed.spec.name), suffixed) is not suffixed:
            problems.append(f"The tool `{one_line(own_name, 80)}` was left out: its name looks like another's.")
    return sorted(kept.values(), key=lambda definition: definition.spec.resource_id)


def remarks_of(definitions: Iterable[Definition]) -> Iterator[str]:
    """Yield what of the definitions is not as their source has it, a sentence each."""
    for definition in definitions:
        own_name = one_line(definition.spec.resource_id, 80)
        if suffix_of(definition.remote) is not None:
            yield f"`{own_name}` is `{definition.spec.name}` here, because another tool's name reads like it."
        yield from (f"`{own_name}`: {clause}." for clause in definition.spec.unenforced)


def with_suffix(definition: Definition, suffix: JsonValue) -> Definition:
    """Return the definition under its name with the suffix, which its pin holds, too. None: the definition itself."""
    if not isinstance(suffix, str) or not suffix:
        return definition
    spec = replace(definition.spec, name=_append_suffix(definition.spec.name, suffix), digest="")
    return structs.replace(definition, spec=spec, remote={**definition.remote, _SUFFIX: suffix})


def suffix_of(remote: JsonObject) -> JsonValue:
    """Return the suffix in a definition that was pinned; None without one."""
    return remote.get(_SUFFIX)


def _plainness(definition: Definition) -> tuple[bool, bool, str]:
    own_name = definition.spec.resource_id
    return _PLAIN.fullmatch(own_name) is None, own_name != own_name.lower(), own_name
