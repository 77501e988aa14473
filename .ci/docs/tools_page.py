"""docs/tools.md: every built-in tool as the registry holds it."""

from __future__ import annotations

import asyncio
import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from schema_words import Schema, main_branch, told_bounds, told_default, told_type
from tables import NOTICE, code, table

from toolhub_service.app.offline import NoJobs
from toolhub_service.app.wiring.deps import SystemClock
from toolhub_service.app.wiring.tools import open_toolbox
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.secrets import Redactor
from toolhub_service.settings.document import Settings

_HEAD = f"""# Built-in tools

What each `core/*` tool needs, takes, answers and bounds. {NOTICE.format(source="the registry")} On a running hub
`toolhub tools show core/fs.readText` says the same, and `toolhub doctor` which tools this machine cannot run.

- **Needs**: the capabilities that the caller's grants must cover ([policy](policy.md)).
- **Hints**: `read_only` changes nothing; `destructive` may replace or remove what was there; `idempotent` may be
  repeated; `open_world` reaches beyond the hub. What can change something wants a `purpose`; a GET by
  a tool that can POST does not.
- **Checked**: arguments that policy checks before the tool runs, and the tool again when it opens, dials or runs.
- **Limits**: which repeats are safe the hints say. What `core/http.*` sends by POST, PUT, PATCH or DELETE is sent once,
  unless the call has an idempotency key and the policy says `retry_with_key` of the host ([policy](policy.md#egress)).
- Paths are relative to the call's workspace. Unknown arguments are refused. Errors are told in [errors](errors.md).
- A result over its limit is cut, marked and flagged `truncated`; the whole becomes an artifact that the answer names.
- `{{"$artifact": "<artifact_id>"}}` may stand in the place of any text: the tool gets the artifact's text instead.
- Any tool can be run as a job (`toolhub jobs submit`), which outlives the call and goes on across restarts.
"""


def page() -> str:
    all_specs = specs()
    lines = [_HEAD, *table(("tool", "needs", "what it does"), (_overview(spec) for spec in all_specs))]
    for spec in all_specs:
        lines += ["", *_section(spec)]
    return "\n".join(lines) + "\n"


def specs() -> list[ToolSpec]:
    """Every built-in tool, as a hub with default settings registers it."""
    with tempfile.TemporaryDirectory() as folder:
        toolbox = open_toolbox(Settings(data_dir=folder), SystemClock(), Redactor(), NoJobs())
        try:
            return [spec for spec in toolbox.catalog.all() if spec.source == "core"]
        finally:
            asyncio.run(toolbox.close())


def _overview(spec: ToolSpec) -> tuple[str, str, str]:
    anchor = "".join(letter for letter in spec.name.lower() if letter.isalnum() or letter in "-_")
    return (
        f"[`{spec.name}`](#{anchor})",
        _codes(sorted(spec.capabilities)),
        spec.description.partition(". ")[0].rstrip(".") + ".",
    )


def _section(spec: ToolSpec) -> Iterator[str]:
    yield from (f"## {spec.name}", "", spec.description, "")
    yield from (f"- {name}: {told}" for name, told in _facts(spec) if told)
    yield from ("", "Input:", "", *_fields(spec.input_schema))
    yield from ("", "Output:", "", *_fields(spec.output_schema))
    for name, schema in {**_definitions(spec.input_schema), **_definitions(spec.output_schema)}.items():
        yield from ("", f"`{name}`:", "", *_fields(schema))
    yield from ("", "```sh")
    yield from (f"{_call(spec, example.args)}  # {example.title}" for example in spec.examples)
    yield "```"


def _facts(spec: ToolSpec) -> Iterator[tuple[str, str]]:
    hints = [name for name in spec.annotations.__struct_fields__ if getattr(spec.annotations, name)]
    limits = spec.limits
    yield "Version", spec.version
    yield "Needs", _codes(sorted(spec.capabilities)) or "nothing"
    yield "Hints", _codes(hints) or "none"
    yield "Checked", ", ".join(f"`{argument.name}` as {argument.role.value}" for argument in spec.guarded)
    retries = f"{limits.max_retries} retries where a repeat is safe" if limits.max_retries else "no retries"
    yield "Limits", f"{limits.timeout_s:g} s, {retries}, {limits.max_result_bytes:,} bytes inline"
    yield "Tags", _codes(spec.tags)


def _fields(schema: Schema) -> list[str]:
    required = set(schema.get("required", ()))
    properties: Mapping[str, Schema] = schema.get("properties", {})
    return table(
        ("field", "type", "default", "bounds", "meaning"),
        (
            (
                code(name),
                told_type(declared),
                told_default(declared, required=name in required and "default" not in declared),
                told_bounds(declared),
                main_branch(declared).get("description", ""),
            )
            for name, declared in properties.items()
        ),
    )


def _definitions(schema: Schema) -> dict[str, Schema]:
    return {name: value for name, value in schema.get("$defs", {}).items() if "properties" in value}


def _call(spec: ToolSpec, args: Mapping[str, Any]) -> str:
    """As pairs where each value fits on a line, else as one JSON object."""
    words = [f"{key}={_value(value)}" for key, value in args.items()]
    if any(isinstance(value, list | dict) for value in args.values()) or any("=@" in w or "\n" in w for w in words):
        words = [json.dumps(args, ensure_ascii=False)]
    return shlex.join(["toolhub", "call", spec.name, *words])


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _codes(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(map(code, names))
