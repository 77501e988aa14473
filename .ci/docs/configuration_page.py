"""docs/configuration.md: every setting with its variable, type, default, bounds and meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import sources_keys
from schema_words import Schema, told_bounds, told_type
from tables import NOTICE, code, table

from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import CLIENT_VARIABLES, Setting, all_settings

_HEAD = f"""# Configuration

All settings of the hub. {NOTICE.format(source="`service/toolhub_service/settings/`")} What agents may do is not set
here but in [policy](policy.md).

Nothing needs to be set for a first run. Settings come from one YAML file (`toolhub serve --config FILE`, or
`TOOLHUB_CONFIG`) and from the environment; the environment wins, and an option of the command line wins over both.
`server.listen` is

```yaml
server:
  listen: 127.0.0.1:50052
```

in the file and `TOOLHUB_SERVER_LISTEN` in the environment. Lists are comma-separated there, or JSON. A name that
nobody knows is refused, with the nearest one that exists. Names that end in `_s` are seconds.

`toolhub config check` validates, `toolhub config show` prints what is in force, `toolhub config schema` prints a JSON
Schema for editors. A change takes effect at the next start. A running hub
[follows](secure.md#policy) the policy file, sources.yaml, the API keys and the TLS certificates.
"""

_CLIENT = {
    "TOOLHUB_ADDRESS": "Where client commands look for the hub; `127.0.0.1:50051` when unset.",
    "TOOLHUB_CONTEXT": "The context of client commands: a hub and a credential by name (`toolhub context`).",
    "TOOLHUB_API_KEY": "Credential of client commands.",
    "TOOLHUB_MCP_URL": "MCP endpoint that `toolhub mcp` carries its client to, such as `https://hub.example/mcp`.",
    "TOOLHUB_CA_FILE": "PEM file of the CAs that client commands and clients trust; set: they use TLS.",
    "TOOLHUB_CERT_FILE": "PEM file of the certificate that clients show, for mutual TLS.",
    "TOOLHUB_KEY_FILE": "PEM file of that certificate's key.",
    "TOOLHUB_CONFIG": "The configuration file of `serve`, `config` and `keys`.",
    "TOOLHUB_REQUEST_ID": "The `request_id` of `toolhub call` (else `cli`) and of clients; it names the workspace.",
    "TOOLHUB_COMPLETION_TIMEOUT_S": "How long a shell that completes names waits for the hub, in seconds (1).",
    "TOOLHUB_REQUIRE_SERVICES": "Tests: what is missing on the machine is a failure instead of a skip.",
    "TOOLHUB_WORKER": "Set by the supervisor for its workers; not for people.",
}


def page() -> str:
    lines = [_HEAD]
    section = None
    for setting in all_settings():
        name = setting.path.rpartition(".")[0]
        if name != section:
            lines += ["", f"## {name or 'Top level'}", "", *table(_HEADINGS, _rows(name))]
            section = name
    for setting in all_settings():
        listed = _declared(setting).get("items", {}).get("$ref")
        if listed is not None:
            keys = table(("key", "type", "default", "meaning"), _listed_rows(listed))
            lines += ["", f"### {setting.path}[]", "", *keys]
    if set(_CLIENT) != CLIENT_VARIABLES:
        raise SystemExit(f"configuration_page: describe {sorted(set(_CLIENT) ^ CLIENT_VARIABLES)}")
    lines += ["", *sources_keys.lines()]
    lines += ["", "## Variables that are no settings", "", "Client commands, tests and the supervisor read these."]
    lines += ["", *table(("variable", "meaning"), ((code(name), told) for name, told in _CLIENT.items()))]
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


_HEADINGS = ("setting", "environment", "type", "default", "bounds", "meaning")


def _rows(section: str) -> Iterator[tuple[str, ...]]:
    for setting in all_settings():
        if setting.path.rpartition(".")[0] == section:
            declared = _declared(setting)
            yield (
                code(setting.path),
                code(setting.variable),
                told_type(declared),
                _default(setting.default),
                told_bounds(declared),
                setting.description,
            )


def _declared(setting: Setting) -> Schema:
    """The JSON Schema of one setting."""
    root, definitions = msgspec.json.schema_components([Settings], ref_template="{name}")
    schema: dict[str, Any] = definitions[root[0]["$ref"]]
    for part in setting.path.split("."):
        found: dict[str, Any] = schema["properties"][part]
        reference = found.get("$ref") or next((branch["$ref"] for branch in found.get("allOf", ())), None)
        schema = definitions[reference] if reference else found
    return schema


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return code(json.dumps(list(value)))
    return code(json.dumps(value)) if value != "" else "–"


def _listed_rows(section: str) -> Iterator[tuple[str, ...]]:
    """The keys of what a setting lists."""
    _, definitions = msgspec.json.schema_components([Settings], ref_template="{name}")
    listed = definitions[section]
    for name, declared in listed["properties"].items():
        default = "required" if name in listed["required"] else code(json.dumps(declared.get("default")))
        yield code(name), told_type(declared), default, declared["description"]
