"""Settings from one YAML file and the environment; the environment wins.

`server.listen` is overridden by `TOOLHUB_SERVER_LISTEN`; lists are comma-separated or JSON. An unknown name is refused,
in the file and in the environment, with the nearest known one: a misspelt setting must not silently leave a default.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import yaml

from toolhub_service.guards.secret_names import is_secret_name
from toolhub_service.guards.yaml_faults import yaml_problem
from toolhub_service.guards.yaml_scalars import load_as_written
from toolhub_service.sections.source_config import SECRET_MIN_CHARS, Section, secrets_of_url
from toolhub_service.settings.document import Settings

# Secrets that this process knows by value: they are hidden under any name and in any text.

_URLS = (
    ("stores", "redis_url"),
    ("stores", "postgres_url"),
    ("approvals", "webhook_url"),
    ("artifacts", "bucket_url"),
    ("tracing", "otlp_endpoint"),
)
# The path of a webhook: chat services put their token there.
_SEGMENTS = re.compile(r"(?<=/)[A-Za-z0-9_-]{16,}(?=[/?]|$)")
# Working directories: their names otherwise announce a password.
_INNOCENT = frozenset({"PWD", "OLDPWD"})


def secret_urls(settings: Settings) -> dict[tuple[str, str], str]:
    """Settings, by section and name, whose value may carry a password."""
    named = {(section, name): getattr(getattr(settings, section), name) for section, name in _URLS}
    return {place: url for place, url in named.items() if url}


def known_secrets(settings: Settings, environment: Mapping[str, str]) -> list[str]:
    """Return values under revealing names in the environment and in arguments of custom tools, and passwords in
    URLs."""
    # A shorter value would be redacted wherever it occurs as an ordinary word.
    return sorted({value for value in _values(settings, environment) if len(value) >= SECRET_MIN_CHARS})


def _values(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    yield from (value for name, value in environment.items() if is_secret_name(name) and name not in _INNOCENT)
    for url in secret_urls(settings).values():
        yield from secrets_of_url(url)
    yield from _SEGMENTS.findall(settings.approvals.webhook_url)
    for custom in settings.tools.custom:
        # A tool of the built-in type `custom` has its arguments one level deeper.
        nested = custom.config.get("args")
        arguments = {**custom.args, **(nested if isinstance(nested, dict) else {})}
        yield from (value for name, value in arguments.items() if isinstance(value, str) and is_secret_name(name))


PREFIX = "TOOLHUB_"

CLIENT_VARIABLES = frozenset(
    {
        "TOOLHUB_ADDRESS",
        "TOOLHUB_API_KEY",
        "TOOLHUB_CA_FILE",
        "TOOLHUB_MCP_URL",
        "TOOLHUB_CERT_FILE",
        "TOOLHUB_CONFIG",
        "TOOLHUB_COMPLETION_TIMEOUT_S",
        "TOOLHUB_CONTEXT",
        "TOOLHUB_KEY_FILE",
        "TOOLHUB_REQUEST_ID",
        "TOOLHUB_REQUIRE_SERVICES",
        "TOOLHUB_WORKER",
    }
)
"""Variables of the command line, the clients and the tests: not settings."""


ENDPOINT_VARIABLE = "SPIFFE_ENDPOINT_SOCKET"
"""Where workloads find the Workload API (SPIFFE_Workload_Endpoint, 4)."""


class SettingsInvalid(ValueError):
    """The configuration cannot be used; the message names file, setting and repair."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One knob, for documentation and for the environment."""

    path: str
    variable: str
    description: str
    type: str
    default: Any
    choices: tuple[str, ...] = ()
    """All that it may be; empty when there are too many to list."""


def load_settings(file: Path | None, environment: Mapping[str, str]) -> Settings:
    """Return the settings. Raises SettingsInvalid."""
    data = _read_settings_file(file) if file else {}
    given = dict(_from_environment(environment))
    for path, value in given.items():
        _put(data, path, value)
    if endpoint := environment.get(ENDPOINT_VARIABLE):
        _put_workload_api(data, endpoint)
    try:
        # Not strict: the environment holds only texts, and "8" is to be read as a number.
        return msgspec.convert(data, Settings, strict=False)
    except msgspec.ValidationError as broken:
        # The variable is checked first, because it has overridden the file.
        where = _variable_of(broken, given) or file or "environment"
        raise SettingsInvalid(f"{where}: {_explain_error(broken)}") from broken


@cache
def all_settings() -> tuple[Setting, ...]:
    """Return every setting in the order of the document."""
    return tuple(_walk(Settings, ()))  # 20 ms: each annotation is evaluated


def data_dir_of(settings: Settings, environment: Mapping[str, str]) -> Path:
    """Return the folder of all data without a more specific setting."""
    if settings.data_dir:
        return Path(settings.data_dir).expanduser()
    return Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "toolhub"


def _walk(section: type[msgspec.Struct], above: tuple[str, ...]) -> Iterator[Setting]:
    for field in msgspec.structs.fields(section):
        path = (*above, field.name)
        if isinstance(field.type, type) and issubclass(field.type, Section):
            yield from _walk(field.type, path)
            continue
        meta = next((m for m in getattr(field.type, "__metadata__", ()) if isinstance(m, msgspec.Meta)), None)
        bare = getattr(field.type, "__origin__", field.type)
        default = field.default if field.default is not msgspec.NODEFAULT else None
        yield Setting(
            path=".".join(path),
            variable=PREFIX + "_".join(path).upper(),
            description=(meta.description if meta else "") or "",
            type=getattr(bare, "__name__", str(bare)).replace("typing.", ""),
            default=default,
            choices=_choices_of(bare),
        )


def _read_settings_file(file: Path) -> dict[str, Any]:
    try:
        data = load_as_written(file.read_text(encoding="utf-8"))
    except OSError as missing:
        raise SettingsInvalid(f"{file}: {os.strerror(missing.errno or 0)}") from missing
    except (yaml.YAMLError, UnicodeDecodeError) as broken:
        # Without its cause: the parser quotes the line, which may hold a password.
        raise SettingsInvalid(f"{file}: not YAML: {yaml_problem(broken)}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise SettingsInvalid(f"{file}: the top level must be a mapping of sections")
    return data


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    # Sorted, so that of several wrong names the same one is reported each time.
    given = sorted(name for name in environment if name.startswith(PREFIX) and name not in CLIENT_VARIABLES)
    known = {setting.variable: setting for setting in all_settings()} if given else {}
    for name in given:
        # A silently ignored variable would leave a default in force that somebody meant to change.
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *CLIENT_VARIABLES], n=1)
            raise SettingsInvalid(f"unknown setting {name}" + (f"; did you mean {near[0]}?" if near else ""))
        yield known[name].path, _parse_variable(environment[name], known[name])


def _parse_variable(text: str, setting: Setting) -> Any:
    """A list may be JSON or comma-separated; everything else is converted by its type."""
    if not isinstance(setting.default, tuple):
        return text
    # JSON as well, because an item may have a comma in it.
    if text.lstrip().startswith("["):
        try:
            return json.loads(text)
        except ValueError as broken:
            raise SettingsInvalid(f"{setting.variable}: not a JSON list") from broken
    return [item.strip() for item in text.split(",") if item.strip()]


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    *sections, name = path.split(".")
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise SettingsInvalid(f"{section} must be a mapping")
    data[name] = value


def _put_workload_api(data: dict[str, Any], endpoint: str) -> None:
    """Use the Workload API's variable only when the hub would otherwise have no certificate:

    it is in every workload's environment, and may be meant for others of the pod.
    """
    auth, server = data.get("auth"), data.get("server")
    if not isinstance(auth, dict) or {"spiffe", "xfcc"}.isdisjoint(auth.get("modes") or ()):
        return
    tls = server.get("tls") if isinstance(server, dict) else None
    has_files = isinstance(tls, dict) and tls.get("certificate_file")
    mesh = auth.get("spiffe", {})
    if isinstance(mesh, dict) and not has_files and not mesh.get("workload_api"):
        auth["spiffe"] = {**mesh, "workload_api": endpoint}


def _explain_error(broken: msgspec.ValidationError) -> str:
    """Return msgspec's error with its path; an unknown field gets the nearest known one."""
    text = str(broken)
    if "Invalid enum value" in text:
        known = {setting.path: setting.choices for setting in all_settings()}
        return f"{text}; use one of: {', '.join(known.get(_path_in(text), ()))}"
    if "unknown field" not in text:
        return text
    # msgspec's message has the name in the first pair of backticks; it offers no other way to learn it.
    unknown = text.split("`")[1]
    names = {part for setting in all_settings() for part in setting.path.split(".")}
    near = difflib.get_close_matches(unknown, names, n=1)
    return text + (f"; did you mean {near[0]}?" if near else "")


def _variable_of(broken: msgspec.ValidationError, given: Mapping[str, Any]) -> str:
    """Return the environment variable whose value is refused; empty when it came from the file."""
    path = _path_in(str(broken))
    return PREFIX + path.replace(".", "_").upper() if path in given else ""


def _path_in(text: str) -> str:
    """Return `auth.modes` of a message that ends with "at `$.auth.modes[0]`"."""
    found = re.search(r"at `\$\.([a-z0-9_.]+)", text)
    return found[1] if found else ""


def _choices_of(type_: Any) -> tuple[str, ...]:
    """Return the possible values if they are few: of a Literal, or a tuple of them."""
    arguments = get_args(type_)
    if get_origin(type_) is tuple:
        return _choices_of(arguments[0])
    return tuple(map(str, arguments)) if get_origin(type_) is Literal else ()
