"""Which of the two eras of the protocol a connection speaks.

`auto` asks by server/discover and falls back to the handshake of 2025-11-25. A fixed 2026-07-28 asks as well, because
the SDK would otherwise adopt it unasked: a dead server would count as connected, and nothing of it be known.
"""

from __future__ import annotations

from mcp import Client
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolhub_service.adapters.mcp.terms import Protocol

_NAME_MAX_CHARS = 100


def mode_of(protocol: Protocol) -> str:
    """The SDK's word for it."""
    return "legacy" if protocol == "2025-11-25" else "auto"


def is_modern(protocol: str) -> bool:
    return protocol in MODERN_PROTOCOL_VERSIONS


def fits(wanted: Protocol, spoken: str) -> bool:
    """Whether what was agreed on is what the operator asked for; older versions of the handshake's era are of it."""
    return wanted == "auto" or is_modern(wanted) == is_modern(spoken)


def announces_changes(client: Client) -> bool:
    """Whether the server says that it tells when its tools change."""
    tools = client.server_capabilities.tools
    return bool(tools and tools.list_changed)


def server_of(client: Client) -> str:
    """`name version`, printable and cut; empty when the server does not name itself."""
    info = client.server_info
    shown = f"{info.name} {info.version}" if info else ""
    return "".join(character if character.isprintable() else "�" for character in shown)[:_NAME_MAX_CHARS].strip()
