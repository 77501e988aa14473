"""Tool definitions as people write them: JSON with the schemas and examples as JSON, not as base64."""

from __future__ import annotations

import base64
import json
from typing import Any

_SCHEMAS = ("inputSchema", "outputSchema")
_SAID_BY_THE_HUB = ("digest", "state", "stateReason")
"""Part of what `tools show` prints; the hub says them anew."""


class NotATool(ValueError):
    """The document is no list of tool definitions; the message says why."""


def tools_of(data: bytes) -> list[dict[str, Any]]:
    """Definitions in the canonical JSON of ToolSpec. Raises NotATool."""
    try:
        document = json.loads(data)
    except ValueError as broken:
        raise NotATool(f"not JSON: {broken}") from broken
    if isinstance(document, dict) and isinstance(document.get("tools"), list):
        document = document["tools"]
    tools = document if isinstance(document, list) else [document]
    if not tools or not all(isinstance(tool, dict) and isinstance(tool.get("name"), str) for tool in tools):
        raise NotATool("must hold one tool definition or a list of them, each an object with a `name`")
    return [_on_the_wire(tool) for tool in tools]


def _on_the_wire(tool: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in tool.items() if key not in _SAID_BY_THE_HUB}
    for name in _SCHEMAS:
        if name in plain:
            plain[f"{name}Json"] = _bytes(plain.pop(name))
    plain["examples"] = [_example(example) for example in plain.get("examples", ())]
    return plain


def _example(example: Any) -> Any:
    if not isinstance(example, dict) or "args" not in example:
        return example
    return {key: value for key, value in example.items() if key != "args"} | {"argsJson": _bytes(example["args"])}


def _bytes(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()
