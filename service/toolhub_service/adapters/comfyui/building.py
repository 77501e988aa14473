"""A sidecar and its graph made into a template, or everything that is wrong with the two told at once.

What an argument can reach is settled here, once: literal inputs of named nodes of named classes, nothing twice, nothing
that is forced, no file names, no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from toolhub_service.adapters.comfyui.arguments import Arguments, schema_problems
from toolhub_service.adapters.comfyui.binding_rules import binding_misfit, seed_misfit
from toolhub_service.adapters.comfyui.graph import graph_problems, literals_of
from toolhub_service.adapters.comfyui.node_inputs import Misplaced, input_of, node_of
from toolhub_service.adapters.comfyui.output_schema import result_schema
from toolhub_service.adapters.comfyui.sidecar import BindingWords, OutputWords, SeedWords, Sidecar
from toolhub_service.adapters.comfyui.template import (
    PLACEHOLDERS,
    PREFIX_INPUT,
    Binding,
    Forced,
    NodeInput,
    OutputTerms,
    OutputType,
    Seed,
    Template,
    TemplateInvalid,
    TemplateLimits,
    Transform,
)
from toolhub_service.domain.json import JsonObject
from toolhub_service.schema.canonical_json import digest
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.schema.refusal import SchemaRefused

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
    return _Building(sidecar, graph).template(words, path)


class _Building:
    """Goes through a sidecar from top to bottom and keeps what is wrong."""

    def __init__(self, sidecar: Sidecar, graph: JsonObject) -> None:
        self._sidecar = sidecar
        self._graph = graph
        self._arguments = Arguments(sidecar.input_schema)
        self._problems: list[str] = []
        self._taken: dict[str, str] = {}
        """Pointer into the graph to what stands there, such as `forced[0]`."""

    def template(self, words: JsonObject, path: str) -> Template:
        sidecar = self._sidecar
        classes = frozenset(str(body["class_type"]) for body in self._graph.values())  # type: ignore[index,call-overload]  # the graph is sound
        workflow_sha256 = digest(self._graph)
        self._say(self._digest_problems(workflow_sha256))
        self._say(schema_problems(self._arguments))
        forced = self._all(
            "forced",
            sidecar.forced,
            lambda said, at: Forced(self._place(said.target, at, said.expect_class), said.value),
        )
        seeds = self._all("seeds", sidecar.seeds, self._seed)
        bindings = self._all("bindings", sidecar.bindings, self._binding)
        outputs = self._all("outputs", sidecar.outputs, self._output)
        self._say(self._forced_problems(forced))
        self._say(self._argument_problems())
        self._say(self._output_problems())
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
            except Misplaced as problem:
                self._problems.append(f"{at}: {problem}")
        return tuple(made)

    def _say(self, problems: Iterable[str]) -> None:
        self._problems.extend(problems)

    def _place(self, pointer: str, at: str, expect_class: str) -> NodeInput:
        place = input_of(self._graph, pointer, expect_class)
        before = self._taken.setdefault(pointer, at)
        if before != at:
            raise Misplaced(f"{pointer} is set by {before} already, so this would never be seen; take one of them out")
        return place

    def _binding(self, said: BindingWords, at: str) -> Binding:
        place = self._place(said.target, at, said.expect_class)
        misfit = binding_misfit(said, self._arguments)
        if misfit:
            raise Misplaced(misfit)
        return Binding(said.source, place, Transform(said.transform))

    def _seed(self, said: SeedWords, at: str) -> Seed:
        place = self._place(said.target, at, said.expect_class)
        misfit = seed_misfit(said, self._arguments) if said.source else ""
        if misfit:
            raise Misplaced(misfit)
        return Seed(place, said.source, said.maximum)

    def _output(self, said: OutputWords, at: str) -> OutputTerms:
        node_of(self._graph, said.node, said.expect_class)
        if self._taken.setdefault(f"output {said.name}", at) != at:
            raise Misplaced(f"there are two outputs named `{said.name}`")
        if said.min_items > said.max_items:
            raise Misplaced("min_items is more than max_items")
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
