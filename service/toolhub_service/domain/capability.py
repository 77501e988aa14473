"""Capabilities: what a tool does to the world and what a principal may do (an open set of strings)."""

from __future__ import annotations

from collections.abc import Iterable

READ_WEB = "read:web"
READ_FS = "read:fs"
WRITE_FS = "write:fs"
READ_DB = "read:db"
WRITE_DB = "write:db"
NETWORK = "network"
GPU = "gpu"
WORKFLOW = "workflow"
EXECUTE_COMMAND = "execute:command"
READ_MEMORY = "read:memory"
WRITE_MEMORY = "write:memory"
SEND_MESSAGE = "send:message"
SPAWN_AGENT = "spawn:agent"
DANGER_DESTRUCTIVE = "danger:destructive"

KNOWN = frozenset(
    {
        READ_WEB,
        READ_FS,
        WRITE_FS,
        READ_DB,
        WRITE_DB,
        NETWORK,
        GPU,
        WORKFLOW,
        EXECUTE_COMMAND,
        READ_MEMORY,
        WRITE_MEMORY,
        SEND_MESSAGE,
        SPAWN_AGENT,
        DANGER_DESTRUCTIVE,
    }
)

ALIASES: dict[str, frozenset[str]] = {
    "read:file": frozenset({READ_FS}),
    "write:file": frozenset({WRITE_FS}),
    "delete:file": frozenset({WRITE_FS, DANGER_DESTRUCTIVE}),
    "network:outbound": frozenset({NETWORK}),
}
"""Older names and what they mean today."""


def canonical(capabilities: Iterable[str]) -> frozenset[str]:
    """The set with older names replaced by today's."""
    named: set[str] = set()
    for capability in capabilities:
        named |= ALIASES.get(capability, frozenset({capability}))
    return frozenset(named)
