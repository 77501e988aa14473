"""Makes a template of a sidecar and its graph, or reports everything that is wrong with the two at once.

What an argument can reach is decided here, once: literal inputs of named nodes of named classes, nothing twice, nothing
that is forced, no file names, no secrets.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from toolhub_service.adapters.comfyui.arguments import Arguments, is_artifact, schema_problems
from toolhub_service.adapters.comfyui.graph import graph_problems, is_link, literals_of
from toolhub_service.adapters.comfyui.template import (
    PLACEHOLDERS,
    PREFIX_INPUT,
    Binding,
    BindingSection,
    Forced,
    NodeInput,
    OutputSection,
    OutputTerms,
    OutputType,
    Seed,
    SeedSection,
    Sidecar,
    Template,
    TemplateInvalid,
    TemplateLimits,
    Transform,
)
from toolhub_service.domain.json import JsonObject
from toolhub_service.schema.canonical_json import digest
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.schema.references import SchemaRefused, names_of

# What may be bound to what: the argument's schema decides, so that no valid call can do more than was meant.

_LOADERS: Final = frozenset({"LoadImage", "LoadImageMask", "LoadImageOutput", "LoadAudio", "LoadVideo", "Load3D"})
"""Classes that read a file of the server: a name of the caller's choice would open anybody's."""
_FILES: Final = frozenset({"image", "audio", "file", "model_file"})


def binding_mismatch(said: BindingSection, arguments: Arguments) -> str:
    """Why the argument may not go there, and what to do; empty when it may."""
    declared = arguments.at(said.source)
    if declared is None:
        return f"input_schema declares no argument {said.source}: add it there, or correct `from`"
    name = said.target.rpartition("/")[2]
    if name == PREFIX_INPUT:
        return f"{said.target} names files, which is not the caller's to choose: force it instead"
    schema = arguments.resolved(declared)
    transform = Transform(said.transform)
    if (transform is Transform.UPLOAD) != is_artifact(schema):
        return f"{said.source}: `format: hub-artifact` and `transform: upload` belong together: say both or neither"
    if transform is Transform.UPLOAD:
        return "" if arguments.types(schema) == frozenset({"string"}) else f"{said.source}: say `type: string`"
    if transform is Transform.NONE and said.expect_class in _LOADERS and name in _FILES and "enum" not in schema:
        return (
            f"{said.target} opens a file of the server, and a name of the caller's choice opens anybody's: say "
            f"`format: hub-artifact` of {said.source} and `transform: upload`, or list the names with `enum`"
        )
    return _unless_literal(said.source, arguments, schema) if transform is Transform.NONE else ""


def seed_mismatch(said: SeedSection, arguments: Arguments) -> str:
    """The same for a seed that a caller may give."""
    schema = arguments.at(said.source)
    if schema is None:
        return f"input_schema declares no argument {said.source}: add it there, or correct `from`"
    types = arguments.types(schema)
    if types is None or not types <= {"integer", "null"}:
        return f"{said.source}: a seed is a whole number: say `type: integer`"
    if arguments.is_given(said.source):
        return f"{said.source} is required or has a default, so nothing is ever drawn: bind it under `bindings`"
    return ""


def _unless_literal(source: str, arguments: Arguments, schema: JsonObject) -> str:
    if arguments.is_literal(schema):
        return ""
    return (
        f"{source} may be an array or an object, which ComfyUI takes for a link: give it a `type` of string, number, "
        "integer or boolean, or bind it as text with `transform: json`"
    )


# The schema of a result, made from the outputs that a sidecar declares.

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


def result_schema(outputs: Sequence[OutputTerms]) -> JsonObject:
    """`{<output>: [file, …]}`; of text outputs `[text, …]`."""
    return {
        "type": "object",
        "required": [output.name for output in outputs],
        "properties": {output.name: _of(output) for output in outputs},
        "additionalProperties": False,
    }


def _of(output: OutputTerms) -> JsonObject:
    items: JsonObject = {"type": "string"} if output.type is OutputType.TEXT else FILE_SCHEMA
    return {"type": "array", "minItems": output.min_items, "maxItems": output.max_items, "items": items}


# Where in a graph a sidecar's pointer leads: to one literal input of one node, of the class the author saw there.

_SHOWN_MAX = 5
_AGAIN = "the graph was exported again and its nodes were renumbered"


class InvalidTarget(ValueError):
    """A pointer does not lead to a literal input as it should; the message says why and what to do."""


def input_of(graph: JsonObject, pointer: str, expect_class: str = "") -> NodeInput:
    """`/3/inputs/seed` in a sound graph; `expect_class` empty: of any class. Raises InvalidTarget."""
    steps = names_of(pointer)
    if len(steps) != 3 or steps[1] != "inputs":
        raise InvalidTarget(f"{pointer} is no input: write `/<node id>/inputs/<name>`")
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
    return NodeInput(node, name, pointer)


def node_of(graph: JsonObject, node: str, expect_class: str = "") -> Mapping[str, Any]:
    """The node. Raises InvalidTarget when there is none, or it is of another class."""
    body = graph.get(node)
    if not isinstance(body, Mapping):
        raise InvalidTarget(f"there is no node {node[:64]}{_since(graph, expect_class)}")
    if expect_class and body["class_type"] != expect_class:
        raise InvalidTarget(
            f"node {node} is of class {body['class_type']}, not {expect_class}{_since(graph, expect_class)}"
        )
    return body


def _since(graph: JsonObject, expect_class: str) -> str:
    """What the nodes of that class are called now."""
    found = [node for node, body in graph.items() if isinstance(body, Mapping) and body["class_type"] == expect_class]
    if not found:
        return f": {_AGAIN}, or the node was taken out"
    return f": {_AGAIN}; {expect_class} is now {' or '.join(found[:_SHOWN_MAX])}"


Words = TypeVar("Words")
Made = TypeVar("Made")
UNWRITTEN: Final = "TODO"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_JOB: Final = "{job_id}"


def build(sidecar: Sidecar, words: JsonObject, graph: JsonObject, path: str) -> Template:
    """`words` is the sidecar as it was read, for its digest. Raises TemplateInvalid."""
    unsound = graph_problems(graph)
    if unsound:
        raise TemplateInvalid(*(f"{sidecar.workflow.file}: {problem}" for problem in unsound))
    return _Build(sidecar, graph).template(words, path)


class _Build:
    """Goes through a sidecar from top to bottom and collects the problems."""

    def __init__(self, sidecar: Sidecar, graph: JsonObject) -> None:
        self._sidecar = sidecar
        self._graph = graph
        self._arguments = Arguments(sidecar.input_schema)
        self._problems: list[str] = []
        self._set_by: dict[str, str] = {}
        """Pointer into the graph to what stands there, such as `forced[0]`."""

    def template(self, words: JsonObject, path: str) -> Template:
        sidecar = self._sidecar
        classes = frozenset(str(body["class_type"]) for body in self._graph.values())  # type: ignore[index,call-overload]  # the graph is sound
        workflow_sha256 = digest(self._graph)
        self._add_problems(self._digest_problems(workflow_sha256))
        self._add_problems(schema_problems(self._arguments))
        forced = self._all(
            "forced",
            sidecar.forced,
            lambda said, at: Forced(self._target(said.target, at, said.expect_class), said.value),
        )
        seeds = self._all("seeds", sidecar.seeds, self._seed)
        bindings = self._all("bindings", sidecar.bindings, self._binding)
        outputs = self._all("outputs", sidecar.outputs, self._output)
        self._add_problems(self._forced_problems(forced))
        self._add_problems(self._argument_problems())
        self._add_problems(self._output_problems())
        limits = self._limits(classes)
        if self._problems:
            raise TemplateInvalid(*self._problems)
        return Template(
            name=sidecar.own_name,
            version=sidecar.version,
            description=sidecar.description,
            input_schema=sidecar.input_schema,
            output_schema=result_schema(outputs) if sidecar.output_schema is None else sidecar.output_schema,
            tags=sidecar.tags,
            graph=self._graph,
            bindings=bindings,
            forced=forced,
            seeds=seeds,
            outputs=outputs,
            limits=limits,
            path=path,
            sha256=digest({"sidecar": words, "graph": self._graph}),
            workflow_sha256=workflow_sha256,
            node_classes=classes,
            warnings=tuple(self._warnings(forced, outputs)),
        )

    def _all(self, where: str, said: Iterable[Words], make: Callable[[Words, str], Made]) -> tuple[Made, ...]:
        """What could be made of a list; the rest is told."""
        made = []
        for index, words in enumerate(said):
            at = f"{where}[{index}]"
            try:
                made.append(make(words, at))
            except InvalidTarget as problem:
                self._problems.append(f"{at}: {problem}")
        return tuple(made)

    def _add_problems(self, problems: Iterable[str]) -> None:
        self._problems.extend(problems)

    def _target(self, pointer: str, at: str, expect_class: str) -> NodeInput:
        place = input_of(self._graph, pointer, expect_class)
        before = self._set_by.setdefault(pointer, at)
        if before != at:
            raise InvalidTarget(
                f"{pointer} is set by {before} already, so this would never be seen; take one of them out"
            )
        return place

    def _binding(self, said: BindingSection, at: str) -> Binding:
        place = self._target(said.target, at, said.expect_class)
        mismatch = binding_mismatch(said, self._arguments)
        if mismatch:
            raise InvalidTarget(mismatch)
        return Binding(said.source, place, Transform(said.transform))

    def _seed(self, said: SeedSection, at: str) -> Seed:
        place = self._target(said.target, at, said.expect_class)
        mismatch = seed_mismatch(said, self._arguments) if said.source else ""
        if mismatch:
            raise InvalidTarget(mismatch)
        return Seed(place, said.source, said.maximum)

    def _output(self, said: OutputSection, at: str) -> OutputTerms:
        node_of(self._graph, said.node, said.expect_class)
        if self._set_by.setdefault(f"output {said.name}", at) != at:
            raise InvalidTarget(f"there are two outputs named `{said.name}`")
        if said.min_items > said.max_items:
            raise InvalidTarget("min_items is more than max_items")
        words = (said.mime, said.min_items, said.max_items, said.max_bytes)
        return OutputTerms(said.name, said.node, said.key, OutputType(said.type), *words)

    def _digest_problems(self, actual: str) -> Iterator[str]:
        said = self._sidecar.workflow.sha256
        if not said or said == actual:
            return
        if _SHA256.fullmatch(said) is None:
            yield f"workflow.sha256: it is no sha256; of this graph it is {actual}"
        else:
            yield f"workflow.sha256: the graph is another one; look at what changed, then write {actual}"

    def _forced_problems(self, forced: Iterable[Forced]) -> Iterator[str]:
        for one in forced:
            if one.target.input != PREFIX_INPUT or not isinstance(one.value, str):
                continue
            steps = re.split(r"[/\\]", one.value)
            if ".." in steps or not steps[0] or "\\" in one.value or not one.value.isprintable():
                yield f"forced: {one.target.pointer} must stay below the server's output folder: no `..`, no `/` first"

    def _argument_problems(self) -> Iterator[str]:
        """Every argument goes somewhere, or is said not to."""
        used = {said.source for said in self._sidecar.bindings}
        used |= {said.source for said in self._sidecar.seeds if said.source}
        for pointer in self._sidecar.unused:
            if self._arguments.at(pointer) is None:
                yield f"unused: input_schema declares no argument {pointer}"
            elif pointer in used:
                yield f"unused: {pointer} is bound, so it is used; take it out"
        goes = used | set(self._sidecar.unused)
        for leaf in self._arguments.leaves:
            if not any(leaf == pointer or leaf.startswith(f"{pointer}/") for pointer in goes):
                yield f"input_schema: argument {leaf} is bound to nothing: bind it, or list it under `unused`"

    def _output_problems(self) -> Iterator[str]:
        schema = self._sidecar.output_schema
        if schema is None:
            return
        try:
            compile_schema(schema)
        except SchemaRefused as refused:
            yield f"output_schema: it cannot be used: {refused.advice}"

    def _limits(self, classes: frozenset[str]) -> TemplateLimits:
        said = self._sidecar.limits
        allowed = classes if said.node_class_allowlist is None else frozenset(said.node_class_allowlist)
        outside = sorted(classes - allowed)
        if outside:
            self._problems.append(
                f"limits.node_class_allowlist: the graph has {', '.join(outside[:10])}, which it does not allow: take "
                "the nodes out, or, if they may run, add the classes"
            )
        return TemplateLimits(allowed, said.max_runtime_s, said.max_output_bytes)

    def _warnings(self, forced: Iterable[Forced], outputs: Iterable[OutputTerms]) -> Iterator[str]:
        """A run that ComfyUI has in its cache names the files of the run before, unless the prefix is new."""
        if self._sidecar.description.startswith(UNWRITTEN):
            yield "description: it is still to be written; models choose tools by it"
        unique = {one.target.node for one in forced if one.target.input == PREFIX_INPUT and _JOB in str(one.value)}
        for node in dict.fromkeys(output.node for output in outputs):
            names = {name for name, _ in literals_of(self._graph[node])}
            if PREFIX_INPUT in names and node not in unique:
                text = f"toolhub/{{{PLACEHOLDERS[0]}}}/{_JOB}/out"
                yield (
                    f"outputs: node {node} is not forced to name its files anew for each job, so a repeated run "
                    f"answers with old files: force /{node}/inputs/{PREFIX_INPUT} to `{text}`"
                )
