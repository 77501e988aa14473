"""Makes a template from a sidecar and its graph, or reports all problems of the two at once.

Only here it is decided what an argument can reach: literal inputs of named nodes of named classes, none twice, none
that is forced, no file names, no secrets.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from toolhub_service.adapters.comfyui.workflow.arguments import Arguments, schema_problems
from toolhub_service.adapters.comfyui.workflow.graph import graph_problems, is_link, literals_of
from toolhub_service.adapters.comfyui.workflow.template import (
    ARTIFACT_FORMAT,
    PLACEHOLDERS,
    PREFIX_INPUT,
    Binding,
    Limits,
    Output,
    OutputType,
    Seed,
    Setting,
    Sidecar,
    Template,
    TemplateInvalid,
    Transform,
)
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.schema.canonical_json import digest
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.schema.references import SchemaRefused, names_of


class InvalidTarget(ValueError):
    """A value is not allowed at this place of the graph; the message says why and what to do."""


# What may be bound where: the argument's schema decides, so that no valid call can do more than intended.

# Classes that read a file of the server: with a name of the caller's choice they would read anybody's file.
_LOADERS: Final = frozenset({"LoadImage", "LoadImageMask", "LoadImageOutput", "LoadAudio", "LoadVideo", "Load3D"})
_FILES: Final = frozenset({"image", "audio", "file", "model_file"})


def check_binding(binding: Binding, arguments: Arguments) -> None:
    """Raises InvalidTarget, which says what to do, when the argument is not allowed there."""
    declared = arguments.at(binding.source)
    if declared is None:
        raise InvalidTarget(f"input_schema declares no argument {binding.source}: add it there, or correct `from`")
    name, schema = binding.pointer.rpartition("/")[2], arguments.follow_reference(declared)
    if name == PREFIX_INPUT:
        raise InvalidTarget(
            f"{binding.pointer} names files, which a caller may not choose: set it under `forced` instead"
        )
    if (binding.transform is Transform.UPLOAD) != (schema.get("format") == ARTIFACT_FORMAT):
        raise InvalidTarget(
            f"{binding.source}: `format: hub-artifact` and `transform: upload` require each other: set both or neither"
        )
    if binding.transform is Transform.UPLOAD and arguments.types(schema) != frozenset({"string"}):
        raise InvalidTarget(f"{binding.source}: set `type: string`")
    if binding.transform is not Transform.NONE:
        return
    if binding.expect_class in _LOADERS and name in _FILES and "enum" not in schema:
        raise InvalidTarget(
            f"{binding.pointer} opens a file of the server, and a name of the caller's choice opens anybody's: say "
            f"`format: hub-artifact` of {binding.source} and `transform: upload`, or list the names with `enum`"
        )
    if not arguments.is_literal(schema):
        raise InvalidTarget(
            f"{binding.source} may be an array or an object, which ComfyUI takes for a link: give it a `type` of "
            "string, number, integer or boolean, or bind it as text with `transform: json`"
        )


def check_seed(seed: Seed, arguments: Arguments) -> None:
    """The same for a seed that a caller may give."""
    schema = arguments.at(seed.source)
    if schema is None:
        raise InvalidTarget(f"input_schema declares no argument {seed.source}: add it there, or correct `from`")
    types = arguments.types(schema)
    if types is None or not types <= {"integer", "null"}:
        raise InvalidTarget(f"{seed.source}: a seed is an integer: set `type: integer`")
    if arguments.is_given(seed.source):
        raise InvalidTarget(
            f"{seed.source} is required or has a default, so no seed is ever generated: bind it under `bindings`"
        )


# The result's schema, made from the outputs that a sidecar declares.

FILE_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "required": ["artifact", "media_type", "bytes", "sha256", "filename"],
    "properties": {
        "artifact": {"type": "string", "description": "Id of the artifact that holds it."},
        "media_type": {"type": "string", "description": "As its bytes say."},
        "bytes": {"type": "integer"},
        "sha256": {"type": "string"},
        "filename": {"type": "string", "description": "As the server named it, without folders."},
    },
}


def result_schema(outputs: Sequence[Output]) -> JsonObject:
    """Return the schema of `{<output>: [file, …]}`; for text outputs `[text, …]`."""
    return {
        "type": "object",
        "required": [output.name for output in outputs],
        "properties": {
            output.name: {
                "type": "array",
                "minItems": output.min_items,
                "maxItems": output.max_items,
                "items": {"type": "string"} if output.type is OutputType.TEXT else FILE_SCHEMA,
            }
            for output in outputs
        },
        "additionalProperties": False,
    }


# A sidecar's pointer leads to one literal input of one node, of the class that the author saw there.

_SHOWN_MAX = 5
_AGAIN = "the graph was exported again and its nodes were renumbered"


def check_target(graph: JsonObject, pointer: str, expect_class: str) -> None:
    """Check a pointer such as `/3/inputs/seed` in a valid graph; an empty `expect_class` allows any class. Raises
    InvalidTarget."""
    steps = names_of(pointer)
    if len(steps) != 3 or steps[1] != "inputs":
        raise InvalidTarget(f"{pointer} is not an input: write `/<node id>/inputs/<name>`")
    node, _, name = steps
    inputs = node_of(graph, node, expect_class)["inputs"]
    if name not in inputs:
        near = difflib.get_close_matches(name, inputs, n=1)
        advice = f"did you mean `{near[0]}`?" if near else f"it has {', '.join(list(inputs)[:_SHOWN_MAX]) or 'none'}"
        raise InvalidTarget(f"{pointer}: node {node} has no input `{name[:64]}` in this graph; {advice}")
    if is_link(inputs[name]):
        raise InvalidTarget(
            f"{pointer} is a link from node {inputs[name][0]}, and no argument may take its place: name that node's "
            "input, or unlink it in ComfyUI and export again"
        )


def node_of(graph: JsonObject, node: str, expect_class: str) -> Mapping[str, Any]:
    """Return the node. Raises InvalidTarget when there is none, or it is of another class."""
    body = graph.get(node)
    if not isinstance(body, Mapping):
        raise InvalidTarget(f"there is no node {node[:64]}{_since(graph, expect_class)}")
    if expect_class and body["class_type"] != expect_class:
        raise InvalidTarget(
            f"node {node} is of class {body['class_type']}, not {expect_class}{_since(graph, expect_class)}"
        )
    return body


def _since(graph: JsonObject, expect_class: str) -> str:
    """Return the end of a sentence: what to do, and the present ids of the nodes of that class."""
    found = [node for node, body in graph.items() if isinstance(body, Mapping) and body["class_type"] == expect_class]
    if not found:
        return f": {_AGAIN}, or the node was taken out"
    return f": {_AGAIN}; {expect_class} is now {' or '.join(found[:_SHOWN_MAX])}"


Item = TypeVar("Item")
UNWRITTEN: Final = "TODO"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_JOB: Final = "{job_id}"


def build(sidecar: Sidecar, words: JsonObject, graph: JsonValue, path: str) -> Template:
    """Return the template. `words` is the sidecar as it was read, for its digest. Raises TemplateInvalid."""
    unsound = graph_problems(graph)
    if unsound:
        raise TemplateInvalid(*(f"{sidecar.workflow.file}: {problem}" for problem in unsound))
    assert isinstance(graph, Mapping)  # otherwise it would be invalid
    return _Build(sidecar, graph).template(words, path)


class _Build:
    """Checks a sidecar from top to bottom and collects the problems."""

    def __init__(self, sidecar: Sidecar, graph: JsonObject) -> None:
        self._sidecar = sidecar
        self._graph = graph
        self._arguments = Arguments(sidecar.input_schema)
        self._problems: list[str] = []
        self._set_by: dict[str, str] = {}
        """By pointer into the graph, the part of the sidecar that sets it, such as `forced[0]`."""

    def template(self, words: JsonObject, path: str) -> Template:
        sidecar = self._sidecar
        classes = frozenset(str(body["class_type"]) for body in self._graph.values())  # type: ignore[index,call-overload]  # the graph is sound
        workflow_sha256 = digest(self._graph)
        self._problems.extend(self._digest_problems(workflow_sha256))
        self._problems.extend(schema_problems(self._arguments))
        self._check_each("forced", sidecar.forced, self._check_target)
        self._check_each("seeds", sidecar.seeds, self._check_seed)
        self._check_each("bindings", sidecar.bindings, self._check_binding)
        self._check_each("outputs", sidecar.outputs, self._check_output)
        self._problems.extend(self._forced_problems())
        self._problems.extend(self._argument_problems())
        self._problems.extend(self._output_problems())
        limits = self._limits(classes)
        if self._problems:
            raise TemplateInvalid(*self._problems)
        return Template(
            name=sidecar.own_name,
            version=sidecar.version,
            description=sidecar.description,
            input_schema=sidecar.input_schema,
            output_schema=result_schema(sidecar.outputs) if sidecar.output_schema is None else sidecar.output_schema,
            tags=sidecar.tags,
            graph=self._graph,
            bindings=sidecar.bindings,
            forced=sidecar.forced,
            seeds=sidecar.seeds,
            outputs=sidecar.outputs,
            limits=limits,
            path=path,
            sha256=digest({"sidecar": words, "graph": self._graph}),
            workflow_sha256=workflow_sha256,
            node_classes=classes,
            warnings=tuple(self._warnings()),
        )

    def _check_each(self, where: str, items: Iterable[Item], check: Callable[[Item, str], None]) -> None:
        """Check each item of a list and collect the problems."""
        for index, item in enumerate(items):
            at = f"{where}[{index}]"
            try:
                check(item, at)
            except InvalidTarget as problem:
                self._problems.append(f"{at}: {problem}")

    def _check_target(self, setting: Setting, at: str) -> None:
        check_target(self._graph, setting.pointer, setting.expect_class)
        before = self._set_by.setdefault(setting.pointer, at)
        if before != at:
            raise InvalidTarget(f"{setting.pointer} is already set by {before}; remove one of them")

    def _check_binding(self, binding: Binding, at: str) -> None:
        self._check_target(binding, at)
        check_binding(binding, self._arguments)

    def _check_seed(self, seed: Seed, at: str) -> None:
        self._check_target(seed, at)
        if seed.source:
            check_seed(seed, self._arguments)

    def _check_output(self, output: Output, at: str) -> None:
        node_of(self._graph, output.node, output.expect_class)
        if self._set_by.setdefault(f"output {output.name}", at) != at:
            raise InvalidTarget(f"two outputs are named `{output.name}`")
        if output.min_items > output.max_items:
            raise InvalidTarget("min_items is greater than max_items")

    def _digest_problems(self, actual: str) -> Iterator[str]:
        declared = self._sidecar.workflow.sha256
        if not declared or declared == actual:
            return
        if _SHA256.fullmatch(declared) is None:
            yield f"workflow.sha256: it is not a SHA-256; the one of this graph is {actual}"
        else:
            yield f"workflow.sha256: the graph has changed; review the change, then set {actual}"

    def _forced_problems(self) -> Iterator[str]:
        for one in self._sidecar.forced:
            if one.pointer.rpartition("/")[2] != PREFIX_INPUT or not isinstance(one.value, str):
                continue
            steps = re.split(r"[/\\]", one.value)
            if ".." in steps or not steps[0] or "\\" in one.value or not one.value.isprintable():
                yield f"forced: {one.pointer} must stay below the server's output folder: no `..`, no `/` first"

    def _argument_problems(self) -> Iterator[str]:
        """Yield a problem for each argument that is neither bound nor declared unused."""
        used = {setting.source for setting in self._sidecar.bindings}
        used |= {setting.source for setting in self._sidecar.seeds if setting.source}
        for pointer in self._sidecar.unused:
            if self._arguments.at(pointer) is None:
                yield f"unused: input_schema declares no argument {pointer}"
            elif pointer in used:
                yield f"unused: {pointer} is bound, so it is used; remove it from `unused`"
        goes = used | set(self._sidecar.unused)
        for leaf in self._arguments.leaves:
            if not any(leaf == pointer or leaf.startswith(f"{pointer}/") for pointer in goes):
                yield f"input_schema: argument {leaf} has no binding: bind it, or list it under `unused`"

    def _output_problems(self) -> Iterator[str]:
        schema = self._sidecar.output_schema
        if schema is None:
            return
        try:
            compile_schema(schema)
        except SchemaRefused as refused:
            yield f"output_schema: it cannot be used: {refused.advice}"

    def _limits(self, classes: frozenset[str]) -> Limits:
        limits = self._sidecar.limits
        allowed = classes if limits.node_class_allowlist is None else limits.node_class_allowlist
        outside = sorted(classes - allowed)
        if outside:
            self._problems.append(
                f"limits.node_class_allowlist: the graph has {', '.join(outside[:10])}, which it does not allow: take "
                "the nodes out, or, if they may run, add the classes"
            )
        return replace(limits, node_class_allowlist=allowed)

    def _warnings(self) -> Iterator[str]:
        """Yield warnings: a run that is in ComfyUI's cache names the files of an earlier run, unless the prefix
        is new."""
        if self._sidecar.description.startswith(UNWRITTEN):
            yield "description: it is missing; models choose tools by it"
        forced, outputs = self._sidecar.forced, self._sidecar.outputs
        unique = {one.target.node for one in forced if one.target.input == PREFIX_INPUT and _JOB in str(one.value)}
        for node in dict.fromkeys(output.node for output in outputs):
            names = {name for name, _ in literals_of(self._graph[node])}
            if PREFIX_INPUT in names and node not in unique:
                text = f"toolhub/{{{PLACEHOLDERS[0]}}}/{_JOB}/out"
                yield (
                    f"outputs: node {node} is not forced to name its files anew for each job, so a repeated run "
                    f"answers with old files: force /{node}/inputs/{PREFIX_INPUT} to `{text}`"
                )
