"""The part of docs/configuration.md that tells every key of sources.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from schema_words import Schema, main_branch, told_bounds, told_type
from tables import code, table

from toolhub_service.app.config_files.sources_file import SOURCES_MAX
from toolhub_service.app.kinds import KINDS, SHARED

_OTHERS = ", ".join(code(kind.name) for kind in KINDS[1:])
_HEAD = f"""## sources.yaml

Where tools come from besides the hub itself; [sources](sources.md) is the guide. The file is the one in the data
folder, or the one that `sources.file` names; a running hub follows it. Beneath `sources` stands a mapping from name to
source, {SOURCES_MAX} at most, of kind `mcp` unless `kind` says {_OTHERS}. Where a type names `SecretRef`,
a text may stand, or a reference to one: `{{env: VARIABLE}}` or `{{file: PATH}}`."""
_HEADINGS = ("key", "type", "default", "bounds", "meaning")


def lines() -> Iterator[str]:
    sections: dict[type, str] = {}
    for kind in KINDS:
        sections |= {kind.config: f"kind: {kind.name}", **kind.sections}
    sections |= SHARED
    _, definitions = msgspec.json.schema_components(list(sections), ref_template="{name}")
    if {section.__name__ for section in sections} != set(definitions):
        raise SystemExit(f"sources_keys: sections without a heading: {sorted(definitions)}")
    yield _HEAD
    for section, heading in sections.items():
        yield from ("", f"### {heading}", "", *table(_HEADINGS, _rows(definitions[section.__name__])))


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
