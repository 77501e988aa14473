"""The part of docs/configuration.md that tells every key of sources.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from schema_words import Schema, main_branch, told_bounds, told_type
from tables import code, table

from toolhub_service.settings.sources import SourcesDocument

_HEAD = """## sources.yaml

Where tools come from besides the hub itself; [sources](sources.md) is the guide. The file is the one in the data
folder, or the one that `sources.file` names; a running hub follows it. Beneath `sources` stands a mapping from name to
source, 64 at most, of kind `mcp` unless `kind: langchain`, `n8n` or `comfyui` is said. Where a type names `SecretRef`,
a text may stand, or a reference to one: `{env: VARIABLE}` or `{file: PATH}`."""
_HEADINGS = ("key", "type", "default", "bounds", "meaning")
_SECTIONS = {
    "McpSource": "kind: mcp",
    "LangChainSource": "kind: langchain",
    "N8nSource": "kind: n8n",
    "N8nWorkflow": "workflows: one workflow of n8n",
    "BusinessError": "fails_when",
    "N8nDiscovery": "discover",
    "ComfyUiSource": "kind: comfyui",
    "ComfyUiBackend": "backends: one server of ComfyUI",
    "ToolTerms": "tools: terms of tools",
    "SecretRef": "SecretRef",
    "ClientCredentials": "oauth",
    "ClientTls": "tls",
}


def lines() -> Iterator[str]:
    """Raises SystemExit when the file has a section that is not told."""
    _, definitions = msgspec.json.schema_components([SourcesDocument], ref_template="{name}")
    if set(_SECTIONS) != set(definitions) - {"SourcesDocument"}:
        raise SystemExit(f"sources_keys: tell {sorted(set(_SECTIONS) ^ set(definitions))}")
    yield _HEAD
    for name, heading in _SECTIONS.items():
        yield from ("", f"### {heading}", "", *table(_HEADINGS, _rows(definitions[name])))


def _rows(section: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    required = section.get("required", ())
    for key, declared in section["properties"].items():
        if key != "kind":
            told = main_branch(declared).get("description", "")
            yield code(key), told_type(declared), _default(key, declared, required), told_bounds(declared), told


def _default(key: str, declared: Schema, required: list[str]) -> str:
    if key in required:
        return "required"
    default = declared.get("default")
    if isinstance(default, dict):  # of a section: its own table tells
        default = None
    return code(json.dumps(default)) if isinstance(default, bool | int | float) or default else "–"
