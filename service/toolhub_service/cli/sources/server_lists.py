"""Lists of MCP servers in the files of other clients.

`mcpServers` (Claude, Cursor, Windsurf, Gemini), `servers` (VS Code), `context_servers` (Zed), a bare block, or one
server. JSON; comments and commas before a closing bracket are accepted.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import Any, Final

_PLACES: Final = (
    ("mcpServers",),
    ("servers",),
    ("mcp", "servers"),
    ("mcp", "mcpServers"),
    ("context_servers",),
    ("mcp",),
)
# Each server has one of them.
_SIGNS: Final = frozenset({"command", "url", "serverUrl", "httpUrl"})
_STRING: Final = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)

Server = dict[str, Any]


class NotServers(ValueError):
    """The text is no list of MCP servers; the message says what was expected."""


def servers_of(text: str, name: str = "") -> dict[str, Server]:
    """Return every server by its name there; with `name` that one, or the only one under this name.

    Raises NotServers.
    """
    document = _parse_servers(text)
    servers = _find_server_list(document)
    if servers is None:
        if not name:
            raise NotServers("one server without a name: give it one with --name")
        return {name: document}
    if not name:
        return servers
    if name not in servers:
        near = difflib.get_close_matches(name, servers, n=1)
        advice = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(servers)}"
        raise NotServers(f"there is no server `{name}`; {advice}")
    return {name: servers[name]}


def _parse_servers(text: str) -> Server:
    bare = _COMMA.sub(lambda found: found.group(1) or "", _COMMENT.sub(lambda found: found.group(1) or " ", text))
    try:
        document = json.loads(bare.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as broken:
        raise NotServers(f"not JSON: {broken}") from broken
    if not isinstance(document, dict):
        raise NotServers("not a JSON object")
    return document


def _find_server_list(document: Server) -> dict[str, Server] | None:
    """Return the list; None: the document is one server."""
    for place in _PLACES:
        found: Any = document
        for key in place:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, dict) and found and all(_is_server(server) for server in found.values()):
            return found
    if _is_server(document):
        return None
    if document and all(_is_server(server) for server in document.values()):
        return document
    raise NotServers("no MCP servers in it: looked for `mcpServers`, `servers`, and servers with `command` or `url`")


def _is_server(value: object) -> bool:
    return isinstance(value, dict) and bool(_SIGNS & value.keys())
