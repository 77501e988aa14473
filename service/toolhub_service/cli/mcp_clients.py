"""How MCP clients are told of a hub: each in the file and form of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolhub_service.settings.document import Settings

_EVERYWHERE = ("", "0.0.0.0", "[::]")  # noqa: S104 - what is listened on, not what is connected to


def mcp_url(settings: Settings, port: int = 0) -> str:
    """Where clients of this machine reach the endpoint; `port` where another one than configured was taken."""
    host, _, configured = settings.server.mcp.listen.rpartition(":")
    scheme = "https" if settings.server.tls.certificate_file else "http"
    return f"{scheme}://{'127.0.0.1' if host in _EVERYWHERE else host}:{port or configured}/mcp"


def http_entry(url: str, key: str) -> dict[str, Any]:
    """A server over HTTP, as Claude Code, Cursor and others write it; `key` empty: no credential."""
    entry: dict[str, Any] = {"type": "http", "url": url}
    if key:
        entry["headers"] = {"Authorization": f"Bearer {key}"}
    return entry
