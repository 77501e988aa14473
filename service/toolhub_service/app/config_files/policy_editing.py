"""policy.yaml, edited as text: a grant is added, and every comment and line that stands there is kept.

The new text is parsed again and must mean the old policy and the grant, nothing else; otherwise nothing is changed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import yaml

from toolhub_service.policy.document import Grant, PolicyDocument
from toolhub_service.policy.parsing import InvalidPolicy, parse_policy

_SECTION = "grants"


class NotEditable(ValueError):
    """The file's layout does not allow a change by a program without losing something; the message has the lines to
    add by hand."""


def lacking_grants(text: str, principal: str, capabilities: Sequence[str]) -> list[str]:
    """The capabilities that no entry of the file gives to exactly this selector. Raises InvalidPolicy."""
    document, _ = parse_policy(text)
    given = {each for grant in document.grants if principal in grant.principals for each in grant.capabilities}
    return [each for each in capabilities if each not in given]


def with_grant(text: str, principal: str, capabilities: Sequence[str]) -> str:
    """The text with one more entry in `grants`. Raises InvalidPolicy for either text, NotEditable."""
    parse_policy({_SECTION: [{"principals": [principal], "capabilities": list(capabilities)}]})
    entry = f"{{principals: {json.dumps([principal])}, capabilities: {json.dumps(list(capabilities))}}}"
    document, _ = parse_policy(text)
    grant = Grant(principals=(principal,), capabilities=tuple(capabilities))
    meant = msgspec.structs.replace(document, grants=(*document.grants, grant))
    edited = _put_in(text, entry)
    if _means(edited, meant):
        return edited
    raise NotEditable(
        f"`{_SECTION}` is written in a way that cannot be changed without losing something. Add by hand:\n- {entry}"
    )


def _means(text: str, meant: PolicyDocument) -> bool:
    try:
        return parse_policy(text)[0] == meant
    except InvalidPolicy:
        return False


def _put_in(text: str, entry: str) -> str:
    value = _section(text)
    if value is None:
        before = text.rstrip()
        return f"{before}\n\n{_SECTION}:\n  - {entry}\n" if before else f"{_SECTION}:\n  - {entry}\n"
    if isinstance(value, yaml.SequenceNode) and value.flow_style:
        close = value.end_mark.index - 1
        inside = text[value.start_mark.index + 1 : close].rstrip()
        comma = ", " if inside and not inside.endswith(",") else " " if inside else ""
        return f"{text[:close].rstrip()}{comma}{entry}{text[close:]}"
    lines = text.splitlines(keepends=True)
    line, indent = _last_line(value), value.start_mark.column
    if not lines[line].endswith("\n"):
        lines[line] += "\n"
    return "".join([*lines[: line + 1], f"{' ' * indent}- {entry}\n", *lines[line + 1 :]])


def _section(text: str) -> yaml.Node | None:
    document: Any = yaml.compose(text, yaml.SafeLoader)
    pairs = document.value if isinstance(document, yaml.MappingNode) else []
    return next((value for key, value in pairs if key.value == _SECTION), None)


def _last_line(node: yaml.Node) -> int:
    """The line in which the node's text ends. The end mark of a block stands behind the comments that follow it."""
    if isinstance(node, yaml.ScalarNode) or (isinstance(node, yaml.CollectionNode) and node.flow_style):
        return int(node.end_mark.line)
    last = node.value[-1]
    return _last_line(last[1] if isinstance(last, tuple) else last)
