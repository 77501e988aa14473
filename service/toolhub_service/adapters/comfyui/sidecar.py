"""The sidecar's own words: read strictly, a key that is not known refused with the nearest that is.

tool: scale_image
description: Scale an uploaded image.
workflow: {file: scale_image.graph.json, sha256: <optional, hex over canonical JSON>}
input_schema: {type: object, additionalProperties: false, required: [image], properties: {…}}
bindings: [{from: /image, to: /1/inputs/image, expect_class: LoadImage, transform: upload}]
forced: [{to: /3/inputs/filename_prefix, value: "toolhub/{tenant}/{job_id}/out"}]
seeds: [{to: /5/inputs/seed, expect_class: KSampler, from: /seed}]
outputs: [{name: image, node: "3", key: images, type: output, mime: [image/png]}]
unused: []
limits: {node_class_allowlist: [LoadImage, SaveImage], max_runtime_s: 300}
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from toolhub_service.adapters.comfyui.template import SEED_MAX, TemplateInvalid

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*"
ToolName = Annotated[str, Meta(pattern=rf"^([a-z0-9][a-z0-9_-]*/)?{_NAME}$", max_length=128)]
Pointer = Annotated[str, Meta(pattern=r"^(/([^~/]|~[01])*)+$", max_length=512)]
"""A JSON Pointer (RFC 6901), not to the whole."""
ClassName = Annotated[str, Meta(min_length=1, max_length=200)]
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
_ITEMS_MAX: Final = 500


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Part of a sidecar."""


class WorkflowWords(Section, frozen=True):
    file: Annotated[str, Meta(min_length=1, max_length=1024)]
    """From the sidecar's own folder."""
    sha256: str = ""


class BindingWords(Section, frozen=True, rename={"source": "from", "target": "to"}):
    source: Pointer
    target: Pointer
    expect_class: ClassName
    transform: Literal["", "upload", "json"] = ""


class ForcedWords(Section, frozen=True, rename={"target": "to"}):
    target: Pointer
    value: bool | int | float | str | None
    expect_class: Annotated[str, Meta(max_length=200)] = ""


class SeedWords(Section, frozen=True, rename={"source": "from", "target": "to"}):
    target: Pointer
    expect_class: ClassName
    source: Pointer | Literal[""] = ""
    maximum: Annotated[int, Meta(ge=1, le=SEED_MAX)] = SEED_MAX


class OutputWords(Section, frozen=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
    node: str
    key: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,64}$")] = "images"
    type: Literal["output", "temp", "text"] = "output"
    expect_class: Annotated[str, Meta(max_length=200)] = ""
    mime: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9.+-]+/([a-z0-9.+-]+|\*)$")], ...] = ()
    min_items: Annotated[int, Meta(ge=0, le=1000)] = 1
    max_items: Annotated[int, Meta(ge=1, le=1000)] = 16
    max_bytes: Annotated[int, Meta(ge=1)] = 64 * 1024 * 1024


class LimitWords(Section, frozen=True):
    node_class_allowlist: tuple[ClassName, ...] | None = None
    max_runtime_s: Annotated[float, Meta(gt=0)] | None = None
    max_output_bytes: Annotated[int, Meta(ge=1)] = 512 * 1024 * 1024


class Sidecar(Section, frozen=True):
    tool: ToolName
    description: Annotated[str, Meta(min_length=1, max_length=16 * 1024)]
    workflow: WorkflowWords
    input_schema: dict[str, Any]
    outputs: Annotated[tuple[OutputWords, ...], Meta(min_length=1, max_length=64)]
    output_schema: dict[str, Any] | None = None
    version: Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]+)?$")] = "1.0.0"
    tags: tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...] = ()
    bindings: Annotated[tuple[BindingWords, ...], Meta(max_length=_ITEMS_MAX)] = ()
    forced: Annotated[tuple[ForcedWords, ...], Meta(max_length=_ITEMS_MAX)] = ()
    seeds: Annotated[tuple[SeedWords, ...], Meta(max_length=_ITEMS_MAX)] = ()
    unused: tuple[Pointer, ...] = ()
    """Arguments that no binding takes, on purpose."""
    limits: LimitWords = LimitWords()

    @property
    def own_name(self) -> str:
        """Without a namespace, which is the source's to give."""
        return self.tool.rpartition("/")[2]


_SECTIONS: Final = (Sidecar, WorkflowWords, BindingWords, ForcedWords, SeedWords, OutputWords, LimitWords)


def read_sidecar(data: object) -> Sidecar:
    """Raises TemplateInvalid."""
    if not isinstance(data, dict):
        raise TemplateInvalid(
            "the sidecar must be an object with `tool`, `description`, `workflow`, `input_schema`, `outputs`"
        )
    if "sources" in data:
        raise TemplateInvalid("it is a sources.yaml: `toolhub workflows check --sources FILE` checks one")
    strange = [*_unknown_keys(data)]
    if strange:
        raise TemplateInvalid(*strange)
    try:
        return msgspec.convert(data, Sidecar)
    except msgspec.ValidationError as broken:
        raise TemplateInvalid(_explained(broken)) from None


def _unknown_keys(data: dict[str, Any]) -> Iterator[str]:
    """At the top, where most are: all of them at once."""
    known = msgspec.structs.fields(Sidecar)
    names = [field.encode_name for field in known]
    for key in data:
        if key not in names:
            yield _unknown(key, names)


def _explained(broken: msgspec.ValidationError) -> str:
    text, _, place = str(broken).partition(" - at `$")
    path = place.rstrip("`").lstrip(".").replace("[...]", "[…]")
    unknown = _UNKNOWN.search(text)
    if unknown is not None:
        names = {field.encode_name for section in _SECTIONS for field in msgspec.structs.fields(section)}
        text = _unknown(unknown.group(1), sorted(names))
    return f"{path}: {text}" if path else text


def _unknown(key: object, names: list[str]) -> str:
    near = difflib.get_close_matches(str(key), names, n=1)
    return f"there is no key `{str(key)[:64]}`" + (f"; did you mean `{near[0]}`?" if near else "")
