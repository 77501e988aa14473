"""A server as another client describes it, as a source of this hub.

A plaintext secret of the other client is moved into its own file; unsupported settings are reported, never silently
dropped.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from toolhub_service.app.config_files.sources_file import RESERVED, check_source_name, to_source
from toolhub_service.app.kinds import BY_NAME, kind_of, preview_sources
from toolhub_service.guards.secret_names import is_secret_name
from toolhub_service.guards.secrets import Redactor
from toolhub_service.registry.names import skeleton
from toolhub_service.sections.source_config import SourceInvalid

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_OF_ENVIRONMENT = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(:-.*)?|input:([A-Za-z0-9_. -]+)")
_OF_THE_EDITOR: Final = frozenset(
    {
        "workspaceFolder",
        "workspaceFolderBasename",
        "userHome",
        "pathSeparator",
        "file",
        "fileDirname",
        "cwd",
        "lineNumber",
    }
)
_SCHEME = re.compile(r"((?:Bearer|Basic|Token|ApiKey|Api-Key)\s+)(\S.*)", re.IGNORECASE | re.DOTALL)
_KNOWN: Final = frozenset(
    {
        *("type", "transport", "transportType", "command", "args", "env", "environment", "cwd"),
        *("url", "serverUrl", "httpUrl", "headers", "disabled", "enabled", "name", "description"),
    }
)
_ADVICE: Final = dict.fromkeys(
    ("alwaysAllow", "autoApprove", "autoAllow", "trust", "allowedTools"), "what may be called stands in policy.yaml"
) | {
    "envFile": "name its variables under `env`",
    "timeout": "`timeout_s` says how long a call may take",
    "includeTools": "`tools: {NAME: {offered: false}}` leaves a tool out",
    "excludeTools": "`tools: {NAME: {offered: false}}` leaves a tool out",
    "oauth": "`oauth` takes client credentials; a hub cannot log in by a browser",
}
_REFERENCE = re.compile(r"(.*)\{(env|file):\s*([^{}]+?)\s*\}", re.DOTALL)
_REDACTOR = Redactor()


class NotConvertible(ValueError):
    """This server cannot be a source; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that is moved into its own file."""

    place: str
    """Such as `env.TOKEN`."""
    file: Path
    text: str = field(repr=False)


@dataclass(slots=True)
class Converted:
    name: str
    entry: dict[str, Any] = field(default_factory=dict)
    """The entry as in sources.yaml."""
    secrets: list[Secret] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Notes for the user, a sentence each."""

    @property
    def capability(self) -> str:
        """Return the capability that lets a principal call its tools."""
        return f"{self.entry.get('kind', 'mcp')}:{self.name}"

    @property
    def for_display(self) -> dict[str, Any]:
        """Return `entry` for display, without secrets in arguments that have no file."""
        shown = dict(self.entry)
        if "args" in shown:
            shown["args"] = _REDACTOR.value([shown["command"], *shown["args"]])[1:]
        return shown


def convert(foreign_name: str, server: dict[str, Any], secrets_folder: Path) -> Converted:
    """Convert a server. Raises NotConvertible."""
    found = new_source(foreign_name)
    if str(_first(server, "type", "transport", "transportType") or "").lower() == "sse":
        raise NotConvertible(
            "speaks the SSE transport, which was retired in 2025; most such servers offer streamable HTTP beside it: "
            f"`toolhub sources add {found.name} --url …/mcp`"
        )
    url = _first(server, "url", "serverUrl", "httpUrl")
    if "command" in server:
        _put_command(found, server, secrets_folder)
    else:
        put_url(found, str(url), _texts(server.get("headers"), "headers"), secrets_folder)
    if server.get("disabled") is True or server.get("enabled") is False:
        found.entry["enabled"] = False
        found.notes.append("it is switched off there, and here: `enabled: false`")
    for key in sorted(server.keys() - _KNOWN):
        found.notes.append(f"`{key}` is left out" + (f": {_ADVICE[key]}" if key in _ADVICE else ""))
    try:
        entry = to_source(found.name, found.entry)
    except SourceInvalid as invalid:
        raise NotConvertible(str(invalid)) from invalid
    found.notes += kind_of(entry).remarks(entry)
    return found


def new_source(foreign_name: str) -> Converted:
    """Return a source with only its name. Raises NotConvertible."""
    found = Converted(_name(foreign_name))
    if found.name != foreign_name:
        found.notes.append(f"its name {foreign_name!r} became {found.name!r}, the namespace of its tools")
    return found


def reference_of(text: str) -> dict[str, str] | None:
    """Return what `{env: VARIABLE}` or `{file: PATH}`, perhaps after a prefix, refers to; None for any other text."""
    found = _REFERENCE.fullmatch(text) if "${" not in text else None
    if found is None:
        return None
    prefix, place, held = found.groups()
    return {place: held, **({"prefix": prefix} if prefix else {})}


def _put_command(found: Converted, server: dict[str, Any], folder: Path) -> None:
    command, args = server["command"], server.get("args") or []
    if isinstance(command, list) and command:
        command, args = command[0], [*command[1:], *args]
    if not isinstance(command, str) or not isinstance(args, list):
        raise NotConvertible("`command` must be a text and `args` a list")
    if _VARIABLE.search(command):
        raise NotConvertible(f"`command` has a variable ({command[:60]}), which only what follows may have")
    arguments = [str(argument) for argument in args]
    found.entry["command"] = command
    if arguments:
        found.entry["args"] = _arguments(found, command, arguments, folder)
    if any(secret.place.startswith("args.") for secret in found.secrets):
        found.notes.append("a secret among its arguments is seen by all who list processes; `env` hides it better")
    if any(argument.partition("@")[0] == "mcp-remote" for argument in arguments):
        found.notes.append("`mcp-remote` only passes on to a URL; `toolhub sources add NAME --url URL` does without it")
    env = _texts(server.get("env") or server.get("environment"), "env")
    if env:
        found.entry["env"] = {name: _value(found, "env", name, text, folder) for name, text in env.items()}
    if server.get("cwd"):
        found.entry["cwd"] = str(server["cwd"])


def _arguments(found: Converted, command: str, arguments: list[str], folder: Path) -> list[str | dict[str, str]]:
    """Return the arguments unchanged except variables and apparent secrets, which are moved."""
    shown = _REDACTOR.value([command, *arguments])[1:]
    kept: list[str | dict[str, str]] = []
    for at, (text, hidden) in enumerate(zip(arguments, shown, strict=True)):
        variables = list(_VARIABLE.finditer(text))
        if variables:
            kept.append(_reference(found, f"args.{at}", text, variables))
        elif hidden != text:
            option, equals, secret = text.partition("=")
            prefix = option + equals if equals and option.startswith("-") else ""
            kept.append(set_aside(found, f"args.{at}", secret if prefix else text, prefix, folder))
        else:
            kept.append(text)
    return kept


def put_url(found: Converted, url: str, headers: dict[str, str], folder: Path) -> None:
    """Set the URL and the headers sent with it; secrets are moved."""
    variables = list(_VARIABLE.finditer(url))
    if variables:
        found.entry["url"] = _reference(found, "url", url, variables)
        url = ""
    parts = urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    if at:
        url = urlunsplit(parts._replace(netloc=host))
        basic = base64.b64encode(unquote(userinfo).encode()).decode()
        if any(name.lower() == "authorization" for name in headers):
            found.notes.append("the user and password of its URL are left out, for it has an Authorization header")
        else:
            headers = {**headers, "Authorization": f"Basic {basic}"}
            found.notes.append("the user and password of its URL are sent as a header")
    if _REDACTOR.text(url) != url:
        found.entry["url"] = set_aside(found, "url", url, "", folder)
    elif url:
        found.entry["url"] = url
    if headers:
        found.entry["headers"] = {name: _value(found, "headers", name, text, folder) for name, text in headers.items()}


def _value(found: Converted, section: str, name: str, text: str, folder: Path) -> str | dict[str, str]:
    """Return the text itself, or the reference to it."""
    if reference := reference_of(text):
        return reference
    variables = list(_VARIABLE.finditer(text))
    if variables:
        return _reference(found, f"{section}.{name}", text, variables)
    if not text or (not is_secret_name(name) and _REDACTOR.text(text) == text):
        return text
    scheme = _SCHEME.fullmatch(text)
    prefix, secret = (scheme.group(1), scheme.group(2)) if scheme else ("", text)
    return set_aside(found, f"{section}.{name}", secret, prefix, folder)


def set_aside(found: Converted, place: str, secret: str, prefix: str, folder: Path) -> dict[str, str]:
    """Return the reference to a secret that is moved into its own file."""
    own_name = place.removeprefix("env.").removeprefix("headers.")
    file = folder / f"{found.name}.{re.sub('[^A-Za-z0-9_-]', '_', own_name)[:100]}"
    found.secrets.append(Secret(place, file, secret))
    return {"file": str(file), **({"prefix": prefix} if prefix else {})}


def _reference(found: Converted, place: str, text: str, variables: list[re.Match[str]]) -> dict[str, str]:
    last = variables[-1]
    meant = _OF_ENVIRONMENT.fullmatch(last.group(1))
    if len(variables) > 1 or last.end() != len(text) or meant is None or last.group(1) in _OF_THE_EDITOR:
        raise NotConvertible(
            f"`{place}` is made of more than a text and one variable of the environment: write its value, or put it "
            "into one variable"
        )
    variable = meant.group(1) or re.sub(r"[^A-Za-z0-9]+", "_", meant.group(3)).strip("_").upper()
    if meant.group(2):
        found.notes.append(f"the default of ${{{variable}}} is left out: it must be set for the hub")
    elif meant.group(3):
        found.notes.append(f"the hub asks nobody for `{meant.group(3)}`: set {variable} in its environment")
    prefix = text[: last.start()]
    return {"env": variable, **({"prefix": prefix} if prefix else {})}


def _name(foreign: str) -> str:
    name = re.sub(r"[^a-z0-9_-]+", "-", foreign.lower()).strip("-_")[:64].rstrip("-_")
    if skeleton(name) in RESERVED:
        name = f"{name}-mcp"
    try:
        return check_source_name(name, {})
    except SourceInvalid as invalid:
        raise NotConvertible(
            f"its name {foreign!r} cannot be made one of ours: add it with a name of your own"
        ) from invalid


def _texts(value: object, place: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str | int | float | bool) for text in value.values()):
        raise NotConvertible(f"`{place}` must hold texts")
    return {str(name): _as_text(text) for name, text in value.items()}


def _as_text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _first(server: dict[str, Any], *keys: str) -> object:
    return next((server[key] for key in keys if server.get(key)), None)


# A source whose kind has its own options (n8n, ComfyUI): checked like `toolhub workflows check`, before anything is
# written.

_SHOWN_MAX = 3


def convert_workflows(name: str, server: dict[str, Any], secrets_folder: Path) -> Converted:
    """`server`: `kind`, `url`, `headers`, and under `given` the options of the kind. Raises NotConvertible."""
    kind, found = BY_NAME[server["kind"]], new_source(name)
    found.entry["kind"] = kind.name
    put_url(found, server["url"], server["headers"], secrets_folder)
    assert kind.entry_of is not None  # else it were no choice of --kind
    entry = kind.entry_of(server["given"])
    for key in (option.name for option in kind.options if option.is_secret and option.name in entry):
        entry[key] = reference_of(entry[key]) or set_aside(found, key, entry[key], "", secrets_folder)
    found.entry |= entry
    _check_converted(found)
    return found


def _check_converted(found: Converted) -> None:
    """Check the source. Raises NotConvertible; valid but probably unintended settings become notes."""
    try:
        source = to_source(found.name, found.entry)
    except SourceInvalid as invalid:
        raise NotConvertible(str(invalid)) from invalid
    report = preview_sources({found.name: source}, None)
    wrong = [*report.problems, *(f"{tool.name}: {problem}" for tool in report.tools for problem in tool.problems)]
    if wrong:
        more = f"; and {len(wrong) - _SHOWN_MAX} more" if len(wrong) > _SHOWN_MAX else ""
        raise NotConvertible("; ".join(wrong[:_SHOWN_MAX]) + more)
    found.notes += [f"{tool.name}: {warning}" for tool in report.tools for warning in tool.warnings]
    found.notes += report.notes
