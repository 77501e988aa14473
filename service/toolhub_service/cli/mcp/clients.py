"""Configuration of MCP clients for a hub: each has its own file and format."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from toolhub_service.cli.connection.contexts import Context
    from toolhub_service.settings.document import Settings

_EVERYWHERE: Final = ("", "0.0.0.0", "[::]")  # noqa: S104 - what is listened on, not what is connected to
_KEY: Final = "TOOLHUB_API_KEY"


def mcp_url(settings: Settings, port: int = 0) -> str:
    """Return where clients of this machine reach the endpoint; `port` when another one than configured was bound."""
    host, _, configured = settings.server.mcp.listen.rpartition(":")
    scheme = "https" if settings.has_tls else "http"
    return f"{scheme}://{'127.0.0.1' if host in _EVERYWHERE else host}:{port or configured}/mcp"


def http_entry(url: str, key: str) -> dict[str, Any]:
    """Return a server over HTTP, as Claude Code, Cursor and others write it; `key` empty: no credential."""
    entry: dict[str, Any] = {"type": "http", "url": url}
    if key:
        entry["headers"] = {"Authorization": f"Bearer {key}"}
    return entry


@dataclass(frozen=True, slots=True)
class ClientForm:
    """The configuration file of one client."""

    file: str | None
    """Path below the home folder; None: there is no file, its form is only shown."""
    servers: str
    """The member that holds the servers."""
    is_toml: bool = False
    file_on_macos: str = ""
    url_member: str = "url"
    """The member for the address of a server over HTTP."""
    names_type: bool = True
    key_form: str = "KEY"
    """How the client reads a key from its environment; KEY: it cannot, so the key is written there."""

    def path(self) -> Path:
        """The client's own file."""
        is_macos = bool(self.file_on_macos) and sys.platform == "darwin"
        return Path.home() / (self.file_on_macos if is_macos else self.file or "mcp.json")


CLIENTS: Final[Mapping[str, ClientForm]] = {
    "claude": ClientForm(
        ".config/Claude/claude_desktop_config.json",
        "mcpServers",
        file_on_macos="Library/Application Support/Claude/claude_desktop_config.json",
    ),
    # The servers of one user, in every project; a project's own are in its `.mcp.json`, of the same form.
    "claude-code": ClientForm(".claude.json", "mcpServers", key_form=f"${{{_KEY}}}"),
    "cursor": ClientForm(".cursor/mcp.json", "mcpServers", key_form=f"${{env:{_KEY}}}"),
    "vscode": ClientForm(
        ".config/Code/User/mcp.json",
        "servers",
        file_on_macos="Library/Application Support/Code/User/mcp.json",
        key_form=f"${{env:{_KEY}}}",
    ),
    "codex": ClientForm(".codex/config.toml", "mcp_servers", is_toml=True, names_type=False),
    "gemini": ClientForm(
        ".gemini/settings.json", "mcpServers", url_member="httpUrl", names_type=False, key_form=f"${_KEY}"
    ),
    "inspector": ClientForm(None, "mcpServers"),
}


def entry_of(
    form: ClientForm, settings: Settings, *, http: bool, config_file: Path | None, data_dir: Path | None
) -> dict[str, Any]:
    """Return the client's entry for the hub. No key is ever written: a placeholder shows where it belongs."""
    needs_key = "insecure-local" not in settings.auth.modes
    if not http:
        arguments = ["mcp"]
        arguments += ["--config", str(config_file.absolute())] if config_file else []
        arguments += ["--data-dir", str(data_dir.absolute())] if data_dir else []
        entry: dict[str, Any] = {"command": _program(), "args": arguments}
        if needs_key:
            entry["env"] = {_KEY: form.key_form}
        return {"type": "stdio", **entry} if form.servers == "servers" else entry
    url = mcp_url(settings)
    if form.is_toml:
        return {"url": url, **({"bearer_token_env_var": _KEY} if needs_key else {})}
    entry = {"type": "http"} if form.names_type else {}
    entry[form.url_member] = url
    if needs_key:
        entry["headers"] = {"Authorization": f"Bearer {form.key_form}"}
    return entry


def entry_of_context(form: ClientForm, name: str, context: Context, url: str) -> dict[str, Any]:
    """Return the entry for a context's hub: at `url` over HTTP, or if that is empty by `toolhub mcp`.

    A client over HTTP logs its user in itself, if the context has a login.
    """
    variable = context.api_key_env or _KEY
    key_form = form.key_form.replace(_KEY, variable)
    needs_key = bool(context.api_key_env or (url and context.api_key_file))
    if not url:
        entry: dict[str, Any] = {"command": _program(), "args": ["mcp", "--context", name]}
        if needs_key:
            entry["env"] = {variable: key_form}
        return {"type": "stdio", **entry} if form.servers == "servers" else entry
    if form.is_toml:
        return {"url": url, **({"bearer_token_env_var": variable} if needs_key else {})}
    entry = {"type": "http"} if form.names_type else {}
    entry[form.url_member] = url
    if needs_key:
        entry["headers"] = {"Authorization": f"Bearer {key_form}"}
    return entry


def _program() -> str:
    """Return the absolute path, because clients start programs without the shell's path."""
    # An absolute path: clients with a window start programs without the shell's PATH.
    return shutil.which("toolhub") or str(Path(sys.executable).parent / "toolhub")


def merge_entry(form: ClientForm, text: str, name: str, entry: Mapping[str, Any]) -> str:
    """Return the file with the entry, everything else unchanged. Raises ValueError for a file of another form."""
    return _merge_toml(form, text, name, entry) if form.is_toml else _merge_json(form, text, name, entry)


def _merge_json(form: ClientForm, text: str, name: str, entry: Mapping[str, Any]) -> str:
    try:
        document = json.loads(text) if text.strip() else {}
    except json.JSONDecodeError as broken:
        raise ValueError(f"it is no plain JSON (line {broken.lineno}); add the entry by hand") from broken
    has_room = isinstance(document, dict) and isinstance(document.setdefault(form.servers, {}), dict)
    if not has_room:
        raise ValueError(f"its {form.servers} is no object; add the entry by hand")
    document[form.servers][name] = dict(entry)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _merge_toml(form: ClientForm, text: str, name: str, entry: Mapping[str, Any]) -> str:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as broken:
        raise ValueError(f"it is no TOML ({broken}); add the entry by hand") from broken
    table = f"[{form.servers}.{name}]"
    if name in document.get(form.servers, {}):
        if document[form.servers][name] == {**entry}:
            return text
        raise ValueError(f"{table} is there already with other values; remove it first")
    lines = [f"{member} = {_toml(value)}" for member, value in entry.items()]
    return f"{text.rstrip()}\n\n".lstrip("\n") * bool(text.strip()) + "\n".join([table, *lines]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{member} = {_toml(each)}" for member, each in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)  # strings and lists of strings are written alike


def write_entry(form: ClientForm, path: Path, name: str, entry: Mapping[str, Any]) -> Path | None:
    """Merge the entry into the file, which keeps its mode.

    Return the path of its former copy, None if there was none or nothing is new.

    Raises OSError, and ValueError as `merge_entry`.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    after = merge_entry(form, text, name, entry)
    if after == text:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    backup = None
    if path.exists():
        # The file belongs to another program: a user who does not like the change can restore the former one.
        backup = path.with_name(f"{path.name}.before-{name}")
        shutil.copy2(path, backup)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.touch(0o600)
        new.write_text(after, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return backup
