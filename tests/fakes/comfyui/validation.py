"""What POST /prompt checks, and the words in which it refuses.

An output node whose branch is wrong is left out; only when no output is left is the prompt refused. Values are coerced
in place ("77" becomes 77), inputs that the class does not know are let through, and a literal where a link belongs is
not noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.comfyui.graph import Graph, is_link
from tests.fakes.comfyui.node_class import NodeClass, NodeContext, Spec
from tests.fakes.comfyui.versions import Version

Reason = dict[str, Any]
_COERCIONS: dict[str, Callable[[Any], Any]] = {"INT": int, "FLOAT": float, "STRING": str, "BOOLEAN": bool}


@dataclass
class ValidationResult:
    """`error` is set when nothing is left to run."""

    outputs: list[str] = field(default_factory=list)
    node_errors: dict[str, Any] = field(default_factory=dict)
    error: Reason | None = None


def reason(kind: str, message: str, details: str = "", **extra: Any) -> Reason:
    """One error, in the shape of all of them."""
    return {"type": kind, "message": message, "details": details, "extra_info": extra}


class Validation:
    """One prompt's. `context` lets classes look at the files that values name."""

    def __init__(self, graph: Graph, classes: dict[str, NodeClass], version: Version, context: NodeContext) -> None:
        self._graph = graph
        self._classes = classes
        self._version = version
        self._context = context
        self._seen: dict[str, list[Reason] | None] = {}
        """Of each node looked at: None when it may run, else its own errors (none: those of nodes above)."""

    def check(self, targets: list[str] | None) -> ValidationResult:
        """`targets`: only these output nodes. Raises: TypeError for what is no prompt at all: the bare 500."""
        for node_id in self._graph:
            if (missing := self._missing(node_id)) is not None:
                return ValidationResult(error=missing)
        outputs = [
            node_id
            for node_id in self._graph
            if self._class(node_id).is_output and (targets is None or node_id in targets)
        ]
        if not outputs:
            return ValidationResult(error=reason("prompt_no_outputs", "Prompt has no outputs"))
        return self._branches(outputs)

    def _class(self, node_id: str) -> NodeClass:
        return self._classes[self._graph[node_id]["class_type"]]

    def _missing(self, node_id: str) -> Reason | None:
        node = self._graph[node_id]
        if not isinstance(node, dict):
            raise TypeError(f"argument of type {type(node).__name__!r} is not iterable")
        name = node.get("class_type")
        if name in self._classes:
            return None
        where = f"Node ID '#{node_id}'"
        if not self._version.names_missing_nodes:
            fault = "a node is missing the class_type property." if name is None else f"node {name} does not exist."
            return reason("invalid_prompt", f"Cannot execute because {fault}", where)
        title = node.get("_meta", {}).get("title") or name
        fault = "has no class_type. The workflow may be corrupted or a custom node is missing."
        fault = fault if name is None else "not found. The custom node may not be installed."
        about = {"node_id": node_id, "class_type": name, "node_title": title}
        return reason("missing_node_type", f"Node '{title}' {fault}", where, **about)

    def _branches(self, outputs: list[str]) -> ValidationResult:
        verdict, faults = ValidationResult(), []
        for output in outputs:
            try:
                good = self._may_run(output, ())
            except (KeyError, IndexError) as broken:
                self._seen[output] = [self._exception(broken, "validate_prompt")]
                good = False
            if good:
                verdict.outputs.append(output)
                continue
            faults += [f"{each['message']}: {each['details']}" for each in self._seen[output] or []]
            self._blame(output, verdict.node_errors)
        if not verdict.outputs:
            message = "Prompt outputs failed validation"
            verdict.error = reason("prompt_outputs_failed_validation", message, "\n".join(faults))
        return verdict

    def _blame(self, output: str, node_errors: dict[str, Any]) -> None:
        for node_id, errors in self._seen.items():
            if errors:
                about = {"errors": errors, "dependent_outputs": [], "class_type": self._graph[node_id]["class_type"]}
                node_errors.setdefault(node_id, about)["dependent_outputs"].append(output)

    def _may_run(self, node_id: str, path: tuple[str, ...]) -> bool:
        if node_id in path:
            self._cycle(path[path.index(node_id) :])
            return False
        if node_id in self._seen:
            return self._seen[node_id] is None
        node, kind = self._graph[node_id], self._class(node_id)
        inputs, errors, above_fine = node["inputs"], [], True
        for name in [*kind.required, *kind.optional]:
            if name not in inputs:
                if name in kind.required:
                    errors.append(reason("required_input_missing", "Required input is missing", name, input_name=name))
            elif isinstance(inputs[name], list):
                wrong = self._bad_link(kind, name, inputs[name])
                errors += [wrong] if wrong else []
                above_fine = (
                    wrong is not None or self._above(kind, name, inputs[name], (*path, node_id))
                ) and above_fine
            else:
                wrong = self._bad_value(kind, name, inputs)
                errors += [wrong] if wrong else []
        if not errors and kind.seen is not None and (fault := kind.seen(inputs, self._context)):
            message = "Custom validation failed for node"
            errors.append(reason("custom_validation_failed", message, f"image - {fault}", input_name="image"))
        if node_id not in self._seen:
            self._seen[node_id] = None if above_fine and not errors else errors
        return self._seen[node_id] is None

    def _above(self, kind: NodeClass, name: str, link: list[Any], path: tuple[str, ...]) -> bool:
        try:
            return self._may_run(link[0], path)
        except (KeyError, IndexError) as broken:
            about = {"input_name": name, "input_config": kind.spec_of(name), "linked_node": link}
            self._seen[link[0]] = [self._exception(broken, "validate_inputs", **about)]
            return False

    def _cycle(self, nodes: tuple[str, ...]) -> None:
        for node_id in nodes:
            self._seen[node_id] = []
        if self._version.finds_cycles:
            path = " -> ".join(f"{each} ({self._graph[each]['class_type']})" for each in (*nodes, nodes[0]))
            for node_id in nodes:
                about = {"node_id": node_id, "cycle_nodes": list(nodes)}
                self._seen[node_id] = [reason("dependency_cycle", "Dependency cycle detected", path, **about)]

    def _exception(self, broken: Exception, where: str, **about: Any) -> Reason:
        raised = {
            "exception_type": type(broken).__name__,
            "traceback": [f'  File ".../execution.py", line 1, in {where}'],
        }
        if about:
            summary = "Exception when validating inner node"
            return reason(
                "exception_during_inner_validation",
                summary,
                str(broken),
                **about,
                exception_message=str(broken),
                **raised,
            )
        return reason("exception_during_validation", "Exception when validating node", str(broken), **raised)

    def _bad_link(self, kind: NodeClass, name: str, link: list[Any]) -> Reason | None:
        spec = kind.spec_of(name) or ["*"]
        about = {"input_name": name, "input_config": spec}
        if not is_link(link):
            message = "Bad linked input, must be a length-2 list of [node_id, slot_index]"
            return reason("bad_linked_input", message, name, **about, received_value=link)
        given = self._classes[self._graph[link[0]]["class_type"]].slots(self._version.is_new)[link[1]]
        if str(spec[0]) in {"*", given} or isinstance(spec[0], list):
            return None
        message = f"{name}, received_type({given}) mismatch input_type({spec[0]})"
        about |= {"received_type": given, "linked_node": link}
        return reason("return_type_mismatch", "Return type mismatch between linked nodes", message, **about)

    def _bad_value(self, kind: NodeClass, name: str, inputs: dict[str, Any]) -> Reason | None:
        spec, value = kind.spec_of(name) or ["*"], inputs[name]
        about = {"input_name": name, "input_config": spec, "received_value": value}
        try:
            inputs[name] = value = _COERCIONS.get(str(spec[0]), lambda same: same)(value)
        except (TypeError, ValueError) as wrong:
            message = f"Failed to convert an input value to a {spec[0]} value"
            details = f"{name}, {value}, {wrong}"
            return reason("invalid_input_type", message, details, **about, exception_message=str(wrong))
        return self._out_of_range(spec, about, value) or self._not_a_choice(kind, spec, about, value)

    def _out_of_range(self, spec: Spec, about: dict[str, Any], value: Any) -> Reason | None:
        options = spec[1] if len(spec) > 1 and str(spec[0]) in {"INT", "FLOAT"} else {}
        if value < options["min"] if "min" in options else False:
            message = f"Value {value} smaller than min of {options['min']}"
            return reason("value_smaller_than_min", message, about["input_name"], **about)
        if value > options["max"] if "max" in options else False:
            message = f"Value {value} bigger than max of {options['max']}"
            return reason("value_bigger_than_max", message, about["input_name"], **about)
        return None

    def _not_a_choice(self, kind: NodeClass, spec: Spec, about: dict[str, Any], value: Any) -> Reason | None:
        if not isinstance(spec[0], list) or kind.seen is not None or value in spec[0]:
            return None
        details = f"{about['input_name']}: '{value}' not in {spec[0]}"
        return reason("value_not_in_list", "Value not in list", details, **about)
