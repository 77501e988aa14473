"""A template: a graph as ComfyUI exports it (API format) and a sidecar that says what of it callers may choose.

`templates.load_templates` reads them, `node_classes.problems_with` holds one to what a server knows, `binding.bound`
makes of one and a call's arguments the graph that is sent. Values only; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from toolhub_service.domain.json import JsonObject

ARTIFACT_FORMAT: Final = "hub-artifact"
"""`format` of an argument that is an artifact's id, to be uploaded."""
SEED_MAX: Final = 2**53 - 1
"""The largest integer that every reader of JSON keeps exactly; ComfyUI's own nodes go on to 2^64 - 1."""
PLACEHOLDERS: Final = ("tenant", "job_id")
"""What forced texts may name in braces."""
PREFIX_INPUT: Final = "filename_prefix"
"""The input that names the files which an output node writes."""


class TemplateInvalid(ValueError):
    """A template cannot be used; `problems` says where, what, and what to do, a sentence or two each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Transform(Enum):
    """What is done to an argument before it stands in the graph."""

    NONE = ""
    UPLOAD = "upload"
    """An artifact's id: its bytes are uploaded first, and the name that the server gave them is put in."""
    JSON = "json"
    """Any value, written as one JSON text."""


class OutputType(Enum):
    """Where a server keeps what an output node made."""

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


@dataclass(frozen=True, slots=True)
class Binding:
    """An argument and where it goes."""

    source: str
    """JSON Pointer into the arguments."""
    target: NodeInput
    transform: Transform = Transform.NONE


@dataclass(frozen=True, slots=True)
class Forced:
    """What stands there whatever a caller says; `{tenant}` and `{job_id}` in a text are filled in."""

    target: NodeInput
    value: None | bool | int | float | str


@dataclass(frozen=True, slots=True)
class Seed:
    """A number that the hub draws when the caller gives none."""

    target: NodeInput
    source: str = ""
    """JSON Pointer into the arguments; empty: always drawn. Seeds of one source share what is drawn."""
    maximum: int = SEED_MAX


@dataclass(frozen=True, slots=True)
class OutputTerms:
    """One thing that a run must leave behind."""

    name: str
    """Property of the result."""
    node: str
    key: str = "images"
    """Under which the node's output names it."""
    type: OutputType = OutputType.OUTPUT
    mime: tuple[str, ...] = ()
    """What sniffed bytes may be; empty: anything but HTML."""
    min_items: int = 1
    max_items: int = 16
    max_bytes: int = 64 * 1024 * 1024
    """Of each file, or text."""


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    node_class_allowlist: frozenset[str]
    """Covers the graph."""
    max_runtime_s: float | None = None
    """From the moment its server has begun it; None: until the job's deadline."""
    max_output_bytes: int = 512 * 1024 * 1024
    """Of all files of one run together."""


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """Whole and consistent in itself. Read, never changed."""

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
    outputs: tuple[OutputTerms, ...]
    limits: TemplateLimits
    path: str
    """The sidecar's file."""
    sha256: str
    """Hex, over the canonical JSON of sidecar and graph."""
    workflow_sha256: str
    """Hex, over the canonical JSON of the graph as exported."""
    node_classes: frozenset[str]
    warnings: tuple[str, ...] = ()
    """What works and is probably not meant, a sentence or two each."""

    def class_of(self, node: str) -> str:
        found = self.graph[node]
        return str(found["class_type"]) if isinstance(found, Mapping) else ""


@dataclass(frozen=True, slots=True)
class Upload:
    """An artifact that must lie on the server before the graph is sent."""

    pointer: str
    """Of the argument."""
    artifact_id: str


@dataclass(frozen=True, slots=True)
class BoundGraph:
    """What is sent."""

    graph: JsonObject
    sha256: str
    """Hex, over its canonical JSON."""
    seeds: Mapping[str, int]
    """By pointer into the graph: given or drawn, for the record."""
    prefixes: Mapping[str, str]
    """File name prefixes that were forced, by pointer into the graph."""
