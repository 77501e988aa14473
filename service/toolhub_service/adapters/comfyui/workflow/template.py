"""A template: a graph as ComfyUI exports it (API format) and a sidecar that declares what callers may choose.

`loading.load_templates` reads them, `node_classes.problems_with` checks one against a server,
`bind_arguments.bind_graph` makes the graph to send from a template and a call's arguments. This module
holds values only and reads no file.

A sidecar:

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from toolhub_service.domain.json import JsonObject
from toolhub_service.schema.references import names_of

ARTIFACT_FORMAT: Final = "hub-artifact"
"""`format` of an argument that is the id of an artifact to upload."""
SEED_MAX: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly; ComfyUI's own nodes accept up to 2^64 - 1."""
PLACEHOLDERS: Final = ("tenant", "job_id")
"""Placeholders in braces that forced texts may contain."""
PREFIX_INPUT: Final = "filename_prefix"
"""The input that names the files of an output node."""


class TemplateInvalid(ValueError):
    """A template cannot be used; `problems` says where, what, and what to do, a sentence or two each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Transform(Enum):
    """How an argument is transformed before it is put into the graph."""

    NONE = ""
    UPLOAD = "upload"
    """An artifact's id: its bytes are uploaded first, and replaced by the name that the server gave them."""
    JSON = "json"
    """Any value, serialized as one JSON text."""


class OutputType(Enum):
    """Where a server stores the result of an output node."""

    OUTPUT = "output"
    TEMP = "temp"
    """As previews do."""
    TEXT = "text"
    """Strings in the history itself; no file."""


@dataclass(frozen=True, slots=True)
class NodeInput:
    """One literal input of one node."""

    node: str
    input: str
    pointer: str
    """`/3/inputs/seed`."""


# Sidecars are parsed strictly: an unknown key is refused, and the nearest known key is suggested.

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*"
ToolName = Annotated[str, Meta(pattern=rf"^([a-z0-9][a-z0-9_-]*/)?{_NAME}$", max_length=128)]
Pointer = Annotated[str, Meta(pattern=r"^(/([^~/]|~[01])*)+$", max_length=512)]
"""A JSON Pointer (RFC 6901), not to the whole."""
ClassName = Annotated[str, Meta(min_length=1, max_length=200)]
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
_ITEMS_MAX: Final = 500


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Part of a sidecar."""


class WorkflowSection(Section, frozen=True):
    file: Annotated[str, Meta(min_length=1, max_length=1024)]
    """From the sidecar's own folder."""
    sha256: str = ""


class Setting(Section, frozen=True, kw_only=True, rename={"source": "from", "pointer": "to"}):
    """What sets one literal input of the graph."""

    pointer: Pointer
    expect_class: Annotated[str, Meta(max_length=200)] = ""
    """The class that the author saw there; empty: any."""

    @property
    def target(self) -> NodeInput:
        """Return the place in a graph; `building.py` has checked that it exists."""
        node, _, name = names_of(self.pointer)
        return NodeInput(node, name, self.pointer)


class Binding(Setting, frozen=True, kw_only=True):
    """An argument and where it goes."""

    source: Pointer
    """Into the arguments."""
    expect_class: ClassName
    transform: Transform = Transform.NONE


class Forced(Setting, frozen=True, kw_only=True):
    """What stands there whatever a caller says; `{tenant}` and `{job_id}` in a text are filled in."""

    value: bool | int | float | str | None


class Seed(Setting, frozen=True, kw_only=True):
    """A number that the hub draws when the caller gives none."""

    expect_class: ClassName
    source: Pointer | Literal[""] = ""
    """Into the arguments; empty: always drawn. Seeds of one source share what is drawn."""
    maximum: Annotated[int, Meta(ge=1, le=SEED_MAX)] = SEED_MAX


class Output(Section, frozen=True):
    """One thing that a run must leave behind."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
    """Property of the result."""
    node: str
    key: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,64}$")] = "images"
    """Under which the node's output names it."""
    type: OutputType = OutputType.OUTPUT
    expect_class: Annotated[str, Meta(max_length=200)] = ""
    mime: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9.+-]+/([a-z0-9.+-]+|\*)$")], ...] = ()
    """What sniffed bytes may be; empty: anything but HTML."""
    min_items: Annotated[int, Meta(ge=0, le=1000)] = 1
    max_items: Annotated[int, Meta(ge=1, le=1000)] = 16
    max_bytes: Annotated[int, Meta(ge=1)] = 64 * 1024 * 1024
    """Of each file, or text."""


class Limits(Section, frozen=True):
    node_class_allowlist: frozenset[ClassName] | None = None
    """None: the classes of the graph."""
    max_runtime_s: Annotated[float, Meta(gt=0)] | None = None
    """From the moment its server has begun it; None: until the job's deadline."""
    max_output_bytes: Annotated[int, Meta(ge=1)] = 512 * 1024 * 1024
    """Of all files of one run together."""


class Sidecar(Section, frozen=True):
    tool: ToolName
    description: Annotated[str, Meta(min_length=1, max_length=16 * 1024)]
    workflow: WorkflowSection
    input_schema: dict[str, Any]
    outputs: Annotated[tuple[Output, ...], Meta(min_length=1, max_length=64)]
    output_schema: dict[str, Any] | None = None
    version: Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]+)?$")] = "1.0.0"
    tags: tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...] = ()
    bindings: Annotated[tuple[Binding, ...], Meta(max_length=_ITEMS_MAX)] = ()
    forced: Annotated[tuple[Forced, ...], Meta(max_length=_ITEMS_MAX)] = ()
    seeds: Annotated[tuple[Seed, ...], Meta(max_length=_ITEMS_MAX)] = ()
    unused: tuple[Pointer, ...] = ()
    """Arguments that no binding takes, on purpose."""
    limits: Limits = Limits()

    @property
    def own_name(self) -> str:
        """Return the name without a namespace, which the source adds."""
        return self.tool.rpartition("/")[2]


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A complete, consistent template. It is never changed."""

    name: str
    """The tool's own name, without the source's."""
    version: str
    description: str
    input_schema: JsonObject
    output_schema: JsonObject
    tags: tuple[str, ...]
    graph: JsonObject
    """Node id to `{class_type, inputs}`."""
    bindings: tuple[Binding, ...]
    forced: tuple[Forced, ...]
    seeds: tuple[Seed, ...]
    outputs: tuple[Output, ...]
    limits: Limits
    path: str
    """The sidecar's file."""
    sha256: str
    """Hex digest of the canonical JSON of sidecar and graph."""
    workflow_sha256: str
    """Hex digest of the canonical JSON of the graph as exported."""
    node_classes: frozenset[str]
    warnings: tuple[str, ...] = ()
    """What works but is probably unintended, a sentence or two each."""

    def class_of(self, node: str) -> str:
        found = self.graph[node]
        return str(found["class_type"]) if isinstance(found, Mapping) else ""


# A tool names its template by the digest: a changed file is another tool, and a call runs exactly the template that was
# checked. Templates that a later reading replaced are kept for a while, for running calls.
_KEPT_MAX: Final = 1_024
_DIGEST_CHARS: Final = 16


class RunnableTemplate(NamedTuple):
    template: Template
    backends: frozenset[str]
    """Names of the servers that have all it needs."""


def resource_id(template: Template) -> str:
    return f"{template.name}@{template.sha256[:_DIGEST_CHARS]}"


class TemplateCache:
    """The currently callable templates of a source, each with the servers that can run it."""

    def __init__(self) -> None:
        self._runnable: dict[str, RunnableTemplate] = {}

    def put(self, found: Mapping[str, RunnableTemplate]) -> None:
        """Store the result of the latest reading, by resource id."""
        kept = {key: runnable for key, runnable in self._runnable.items() if key not in found}
        self._runnable = dict([*kept.items(), *found.items()][-max(_KEPT_MAX, len(found)) :])

    def get(self, key: str) -> RunnableTemplate | None:
        return self._runnable.get(key)


_SECTIONS: Final = (Sidecar, WorkflowSection, Binding, Forced, Seed, Output, Limits)


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
        raise TemplateInvalid(_explain_violation(broken)) from None


def _unknown_keys(data: dict[str, Any]) -> Iterator[str]:
    """Yield all unknown keys at the top level, where most are."""
    known = msgspec.structs.fields(Sidecar)
    names = [field.encode_name for field in known]
    for key in data:
        if key not in names:
            yield _unknown(key, names)


def _explain_violation(broken: msgspec.ValidationError) -> str:
    text, _, place = str(broken).partition(" - at `$")
    path = place.rstrip("`").lstrip(".").replace("[...]", "[…]")
    unknown = _UNKNOWN.search(text)
    if unknown is not None:
        names = {field.encode_name for section in _SECTIONS for field in msgspec.structs.fields(section)}
        text = _unknown(unknown.group(1), sorted(names))
    return f"{path}: {text}" if path else text


def _unknown(key: object, names: list[str]) -> str:
    near = difflib.get_close_matches(str(key), names, n=1)
    return f"unknown key `{str(key)[:64]}`" + (f"; did you mean `{near[0]}`?" if near else "")
