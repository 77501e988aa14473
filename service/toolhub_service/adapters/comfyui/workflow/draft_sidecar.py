"""Drafts a first sidecar for a graph: likely arguments, what must be forced, and the outputs.

It is a draft for a person to reduce, narrow and describe. Numbers and switches become arguments with the graph's
value as default; texts and uploads are required, seeds are drawn, file names forced. With the server's /object_info,
bounds and choices are the server's; without, a number may be up to four times the graph's value, and choices, which
look like other texts, are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolhub_service.adapters.comfyui.workflow.building import UNWRITTEN
from toolhub_service.adapters.comfyui.workflow.graph import (
    literals_of,
)
from toolhub_service.adapters.comfyui.workflow.node_classes import declared_inputs
from toolhub_service.adapters.comfyui.workflow.node_inputs import InputSpec, read_input_spec
from toolhub_service.adapters.comfyui.workflow.template import (
    ARTIFACT_FORMAT,
    PREFIX_INPUT,
    SEED_MAX,
)
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.secret_names import is_secret_name
from toolhub_service.schema.compiled import compile_schema

PREFIX: Final = "toolhub/{tenant}/{job_id}/out"
_SEEDS: Final = frozenset({"seed", "noise_seed"})
_TEXTS: Final = frozenset({"text", "prompt", "positive", "negative", "string", "value", "text_g", "text_l", "caption"})
_UPLOADS: Final = {"LoadImage": "image", "LoadImageMask": "image", "LoadAudio": "audio", "LoadVideo": "file"}
_LEAVES: Final = re.compile(r"^(Save|Preview)|(Save|Preview)$")
# Classes whose outputs differ from what their names suggest: key and type of each output and, for outputs that exist
# for one input only, that input (from ComfyUI's own nodes, 0.3.64 to 0.33).
_PUT_OUT: Final[Mapping[str, tuple[tuple[str, str, str], ...]]] = {
    "SaveText": (("text", "text", ""),),
    "SaveLatent": (("latents", "output", ""),),
    "ImageCompare": (("a_images", "temp", "image_a"), ("b_images", "temp", "image_b")),
}
_TEXT_LEAVES: Final = re.compile(r"^(PreviewAny|PreviewText|ShowText)")
_FILE: Final = re.compile(r"\.[A-Za-z][A-Za-z0-9]{1,11}$")
_MIME: Final = {
    "SaveImage": ["image/png"],
    "PreviewImage": ["image/png"],
    "ImageCompare": ["image/png"],
    "SaveAnimatedWEBP": ["image/webp"],
}
_CHOICES_MAX: Final = 60
_TIMES: Final = 4
_TEXT_MAX_CHARS: Final = 20_000


@dataclass(frozen=True, slots=True)
class _Literal:
    node: str
    node_class: str
    title: str
    input: str
    value: JsonValue
    terms: InputSpec | None

    @property
    def pointer(self) -> str:
        return f"/{self.node}/inputs/{self.input.replace('~', '~0').replace('/', '~1')}"


def draft_of(graph: JsonObject, name: str, file: str, object_info: JsonObject | None = None) -> dict[str, Any]:
    """Return a sidecar for a valid graph, as JSON. `file` is the graph's path, relative to the sidecar's folder."""
    literals = [*_literals(graph, object_info or {})]
    drawn = [literal for literal in literals if literal.input in _SEEDS and isinstance(literal.value, int)]
    chosen = [(literal, schema) for literal in literals if literal not in drawn and (schema := _schema(literal))]
    names = _names([literal for literal, _ in chosen] + drawn)
    properties = {names[literal.pointer]: schema for literal, schema in chosen}
    properties |= {names[literal.pointer]: _seed_schema(literal) for literal in drawn}
    return {
        "tool": name,
        "version": "1.0.0",
        "description": f"{UNWRITTEN}: what it makes of what, and when to use it.",
        "workflow": {"file": file},
        "input_schema": {
            "type": "object",
            "additionalProperties": False,
            "required": [name for name, schema in properties.items() if schema.get("minLength")],
            "properties": properties,
        },
        "bindings": [
            _binding(literal, names[literal.pointer], **({"transform": "upload"} if "format" in schema else {}))
            for literal, schema in chosen
        ],
        "forced": [
            {"to": literal.pointer, "expect_class": literal.node_class, "value": PREFIX}
            for literal in literals
            if literal.input == PREFIX_INPUT
        ],
        "seeds": [
            _binding(
                literal,
                names[literal.pointer],
                **({"maximum": _seed_max(literal)} if _seed_max(literal) < SEED_MAX else {}),
            )
            for literal in drawn
        ],
        "outputs": [*_outputs(graph, object_info or {})],
        "limits": {
            "node_class_allowlist": sorted({_class(body) for body in graph.values()}),
            "max_runtime_s": 600,
        },
    }


def _literals(graph: JsonObject, object_info: JsonObject) -> Iterator[_Literal]:
    for node, body in graph.items():
        node_class = _class(body)
        declared = declared_inputs(object_info.get(node_class))
        for name, value in literals_of(body):
            if not declared or name in declared:  # an input that the server does not know has no effect
                terms = read_input_spec(declared[name]) if declared else None
                yield _Literal(node, node_class, _title(body), name, value, terms)


def _schema(literal: _Literal) -> dict[str, Any]:
    """Return the schema of the argument that replaces the literal; empty: none."""
    if literal.input == PREFIX_INPUT or literal.input.startswith("control_") or is_secret_name(literal.input):
        return {}
    what, terms = f"{literal.input} of {literal.title or literal.node_class}", literal.terms
    if (terms is not None and terms.is_upload) or _UPLOADS.get(literal.node_class) == literal.input:
        return {"type": "string", "format": ARTIFACT_FORMAT, "minLength": 1, "description": f"Artifact id: {what}"}
    about = {"description": what}
    if isinstance(literal.value, bool):
        return {"type": "boolean", "default": literal.value, **about}
    if isinstance(literal.value, int | float):
        return {**_number(literal), **about}
    if terms is not None and terms.choices is not None:
        is_free = _is_free_choice(literal.value, terms.choices)
        return {"enum": [*terms.choices], "default": literal.value, **about} if is_free else {}
    is_text = literal.input in _TEXTS if terms is None else terms.types == ("STRING",)
    if isinstance(literal.value, str) and is_text:
        return {"type": "string", "minLength": 1, "maxLength": _TEXT_MAX_CHARS, **about}
    return {}


def _is_free_choice(value: JsonValue, choices: Sequence[JsonValue]) -> bool:
    """Return whether the caller may choose: not among files, such as models, whose permitted ones cannot be guessed."""
    if value not in choices or len(choices) > _CHOICES_MAX:
        return False
    return all(isinstance(choice, str | int | float) and not _FILE.search(str(choice)) for choice in choices)


def _number(literal: _Literal) -> dict[str, Any]:
    value, terms = literal.value, literal.terms
    assert isinstance(value, int | float)
    is_integer = isinstance(value, int) if terms is None else terms.types == ("INT",)
    lowest = terms.minimum if terms is not None else min(0, value * _TIMES)
    highest = terms.maximum if terms is not None else max(1, value * _TIMES)
    bounds = {"minimum": lowest, "maximum": min(highest, SEED_MAX) if highest is not None else None}
    schema: dict[str, Any] = {"type": "integer" if is_integer else "number"}
    schema |= {name: at for name, at in bounds.items() if at is not None}
    return {**schema, "default": value} if compile_schema(schema).is_valid(value) else schema


def _seed_schema(literal: _Literal) -> dict[str, Any]:
    return {
        "type": "integer",
        "minimum": 0,
        "maximum": _seed_max(literal),
        "description": "Left out: drawn by the hub.",
    }


def _seed_max(literal: _Literal) -> int:
    highest = literal.terms.maximum if literal.terms is not None else None
    return SEED_MAX if highest is None else min(int(highest), SEED_MAX)


def _binding(literal: _Literal, name: str, **more: Any) -> dict[str, Any]:
    return {"from": f"/{name}", "to": literal.pointer, "expect_class": literal.node_class, **more}


def _names(literals: list[_Literal]) -> dict[str, str]:
    """Return the arguments by pointer: the input's name; if several have it, with the node's title and, at last, its
    id."""
    plain = [_word(literal.input) for literal in literals]
    titled = [
        f"{_word(literal.title or literal.node_class)}_{name}" for literal, name in zip(literals, plain, strict=True)
    ]
    names = {}
    for literal, name, longer in zip(literals, plain, titled, strict=True):
        short = name if plain.count(name) == 1 else longer
        names[literal.pointer] = short if [*plain, *titled].count(short) == 1 else f"{longer}_{_word(literal.node)}"
    return names


def _outputs(graph: JsonObject, object_info: JsonObject) -> Iterator[dict[str, Any]]:
    found = [(node, body) for node, body in graph.items() if _is_output(body, object_info)]
    for node, body in found:
        node_class = _class(body)
        for key, kind in _put_out(body):
            name = key if key != "3d" else "model"
            name = name if len(found) == 1 else f"{name}_{_word(node)}"
            output = {"name": name, "node": node, "key": key, "type": kind, "expect_class": node_class}
            yield output | ({"mime": _MIME[node_class]} if node_class in _MIME else {})


def _put_out(body: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield key and type of each output of the node."""
    node_class, inputs = _class(body), body["inputs"] if isinstance(body, Mapping) else {}
    if node_class in _PUT_OUT:
        for key, kind, needs in _PUT_OUT[node_class]:
            if not needs or (isinstance(inputs, Mapping) and needs in inputs):
                yield key, kind
        return
    is_text = _TEXT_LEAVES.match(node_class) is not None
    key = "text" if is_text else "audio" if "Audio" in node_class else "3d" if "GLB" in node_class else "images"
    yield key, "text" if is_text else "temp" if "Preview" in node_class else "output"


def _is_output(body: JsonValue, object_info: JsonObject) -> bool:
    described = object_info.get(_class(body))
    if isinstance(described, Mapping):
        return described.get("output_node") is True
    if _class(body) in _PUT_OUT:
        return True
    return _LEAVES.search(_class(body)) is not None or PREFIX_INPUT in dict(literals_of(body))


def _class(body: JsonValue) -> str:
    return str(body["class_type"]) if isinstance(body, Mapping) else ""


def _title(body: JsonValue) -> str:
    meta = body.get("_meta") if isinstance(body, Mapping) else None
    title = meta.get("title") if isinstance(meta, Mapping) else None
    return title[:80] if isinstance(title, str) and title.isprintable() else ""


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40] or "value"
