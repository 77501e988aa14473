"""The grammar of tool names, which names are reserved, and which pairs are too similar to coexist.

A name is `namespace/path.verb`: a lower-case namespace, then one or more words joined by dots (a remote tool may have
no path). Two names that differ only by case or separators have the same *skeleton*: a reader who confuses them would
call the wrong tool, so the catalog holds at most one name per skeleton.
"""

from __future__ import annotations

import re
from typing import Final

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason

NAME_MAX_CHARS: Final = 128
CORE_NAMESPACE: Final = "core"
CORE_PREFIX: Final = f"{CORE_NAMESPACE}/"

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]*/[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")
_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")


def check_name(name: str) -> None:
    """Raise HubFailure INVALID_ARGUMENT when the name breaks the grammar or is longer than 128 characters."""
    if len(name) > NAME_MAX_CHARS:
        raise refuse_name(Reason.TOOL_NAME_INVALID, f"a tool name has at most {NAME_MAX_CHARS} characters", name)
    if _NAME.fullmatch(name) is None:
        raise refuse_name(
            Reason.TOOL_NAME_INVALID,
            "a tool name is `namespace/path.verb`: a lower-case namespace, a slash, then words of letters, digits, "
            "`_` and `-` joined by dots",
            name,
        )


def check_not_reserved(name: str) -> None:
    """Raise HubFailure PERMISSION_DENIED for `core/` and for any namespace that looks like it."""
    namespace = name.partition("/")[0]
    if skeleton(namespace) == CORE_NAMESPACE:
        raise HubFailure(
            Reason.TOOL_NAME_RESERVED,
            f"the namespace `{namespace}/` is reserved for built-in tools: choose another one",
            tool=name,
        )


def skeleton(name: str) -> str:
    """Return the name without case and separators: `core/fs.readText` gives `corefsreadtext`."""
    return _SEPARATORS.sub("", name.lower())


def refuse_name(reason: Reason, message: str, name: str) -> HubFailure:
    return HubFailure(reason, message, tool=name[:NAME_MAX_CHARS])
