"""docs/skill-manifest.md, every key of a skill's toolhub.json, and its JSON Schema for editors."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

import msgspec
from schema_words import main_branch, told_bounds, told_type
from tables import NOTICE, code, table

from toolhub_service.adapters.skill.manifest import SECTIONS, Manifest, manifest_schema

_HEAD = """# toolhub.json: the sidecar of a skill

What makes a skill of the [Agent Skills format](https://agentskills.io) a tool with a schema: a file `toolhub.json`
beside its SKILL.md. [The schema](toolhub.schema.json) is for editors. Keys are read strictly: an unknown one is
refused."""
_HEADINGS = ("key", "type", "default", "bounds", "meaning")


def schema() -> str:
    notice = NOTICE.format(source="adapters/skill/manifest.py")
    return json.dumps({"$comment": notice, **manifest_schema()}, indent=2, ensure_ascii=False) + "\n"


def page() -> str:
    return "\n".join([NOTICE.format(source="adapters/skill/manifest.py"), "", *_lines()]) + "\n"


def _lines() -> Iterator[str]:
    _, definitions = msgspec.json.schema_components([*SECTIONS], ref_template="{name}")
    if {section.__name__ for section in SECTIONS} != set(definitions):
        raise SystemExit(f"skill_manifest_page: sections without a heading: {sorted(definitions)}")
    yield _HEAD
    for section, heading in SECTIONS.items():
        told = "" if section is Manifest else " ".join(inspect.cleandoc(section.__doc__ or "").split())
        yield from ("", f"## {heading}", "", *([told, ""] if told else []))
        yield from table(_HEADINGS, _rows(definitions[section.__name__]))


def _rows(section: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    required = section.get("required", ())
    for key, declared in section["properties"].items():
        default = declared.get("default")
        shown = code(json.dumps(default)) if isinstance(default, bool | int | float) or default else "–"
        meaning = main_branch(declared).get("description", "")
        yield (code(key), told_type(declared), "required" if key in required else shown, told_bounds(declared), meaning)
