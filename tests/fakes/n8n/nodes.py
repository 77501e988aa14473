"""What each kind of node does with its items: Webhook, Set (raw), Code, Wait, Respond to Webhook, Stop and Error,
Remove Duplicates, No Operation.

Code nodes run what expressions.py can; for anything else a test attaches a Python stand-in to the node's name.
A node of an unknown kind fails, so that a workflow is never half understood.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.fakes.n8n.answers import HTML, JSON, Answer, json_answer, trace
from tests.fakes.n8n.executions import Execution
from tests.fakes.n8n.expressions import ScriptError, resolved, run_code, stringify
from tests.fakes.n8n.moments import epoch_ms
from tests.fakes.n8n.workflows import with_defaults

Item = dict[str, Any]
Node = dict[str, Any]
CodeStandIn = Callable[[list[Item], Execution], list[Item]]
"""Instead of a Code node's JavaScript; what it raises is the node's error."""
_FRAMES = (
    "WorkflowExecute.executeNode (~/n8n-core/src/execution-engine/workflow-execute.ts:1039:31)",
    "WorkflowExecute.runNode (~/n8n-core/src/execution-engine/workflow-execute.ts:1218:22)",
    "~/n8n-core/src/execution-engine/workflow-execute.ts:1655:38",
    "~/n8n-core/src/execution-engine/workflow-execute.ts:2298:11",
)
_STOPPED_AT = "ExecuteContext.execute (~/n8n-nodes-base/nodes/StopAndError/StopAndError.node.ts:92:9)"


class NodeError(Exception):
    """A node failed; `told` is the form that n8n stores."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(fields["message"])
        self.fields = fields


@dataclass
class Step:
    """One node of one execution, with what comes in."""

    node: Node
    execution: Execution
    items: list[Item]
    wait: Callable[[Execution, float], Awaitable[None]]
    code: dict[str, CodeStandIn]

    @property
    def parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = self.node.get("parameters", {})
        return parameters

    def resolved(self, parameter: Any) -> Any:
        try:
            return resolved(parameter, self.names())
        except ScriptError as error:
            raise self.failure("ExpressionError", str(error)) from error

    def names(self) -> dict[str, Any]:
        """What scripts of this node can name."""
        execution = self.execution
        return {
            "$json": self.items[0]["json"] if self.items else {},
            "$input": _view(self.items),
            "$": lambda name: _view(_output_of(execution, name)),
            "$execution": {"id": execution.id, "customData": {"set": execution.custom_data.__setitem__}},
            "$workflow": {"id": execution.workflow.id, "name": execution.workflow.name},
            "JSON": {"stringify": stringify},
        }

    def failure(self, kind: str, text: str, *frames: str) -> NodeError:
        fields = {"level": "warning", "tags": {}, "timestamp": epoch_ms(), "context": {}, "functionality": "regular"}
        fields |= {"name": kind, "node": with_defaults(self.node), "messages": [], "message": text}
        return NodeError(fields | {"stack": trace(kind, text, *frames, *_FRAMES)})


Outputs = list[list[Item]]
Act = Callable[[Step], Awaitable[Outputs]]


async def _pass_on(step: Step) -> Outputs:
    return [step.items]


async def _set(step: Step) -> Outputs:
    made = step.resolved(step.parameters["jsonOutput"])
    return [[_item(json.loads(made) if isinstance(made, str) else made)]]


async def _code(step: Step) -> Outputs:
    stand_in = step.code.get(step.node["name"])
    try:
        if stand_in is not None:
            return [stand_in(step.items, step.execution)]
        made = run_code(step.parameters["jsCode"], step.names())
    except Exception as error:
        raise NodeError(_thrown(str(error))) from error
    return [[_item(item["json"]) for item in made]]


async def _wait(step: Step) -> Outputs:
    units = {"seconds": 1, "minutes": 60, "hours": 3_600, "days": 86_400}
    amount = float(step.resolved(step.parameters.get("amount", 1)))
    await step.wait(step.execution, amount * units[step.parameters.get("unit", "hours")])
    return [step.items]


async def _stop(step: Step) -> Outputs:
    text = str(step.resolved(step.parameters.get("errorMessage", "")))
    raise step.failure("NodeOperationError", text, _STOPPED_AT)


async def _respond(step: Step) -> Outputs:
    if not step.execution.answer.done():
        step.execution.answer.set_result(_response(step))
    return [step.items]


async def _remove_duplicates(step: Step) -> Outputs:
    value = stringify(step.resolved(step.parameters["dedupeValue"]))
    seen = step.execution.workflow.seen_values
    if value in seen:
        return [[], step.items]
    seen.add(value)
    return [step.items, []]


ACTS: dict[str, Act] = {
    "n8n-nodes-base.webhook": _pass_on,
    "n8n-nodes-base.noOp": _pass_on,
    "n8n-nodes-base.set": _set,
    "n8n-nodes-base.code": _code,
    "n8n-nodes-base.wait": _wait,
    "n8n-nodes-base.stopAndError": _stop,
    "n8n-nodes-base.respondToWebhook": _respond,
    "n8n-nodes-base.removeDuplicates": _remove_duplicates,
}


async def act(step: Step) -> Outputs:
    """What comes out, by output.

    Raises:
        NodeError: the node failed, and with it the execution.
    """
    kind = step.node["type"]
    if kind not in ACTS:
        raise step.failure("WorkflowOperationError", f"Unrecognized node type: {kind}")
    try:
        return await ACTS[kind](step)
    except (KeyError, TypeError, ValueError) as error:
        raise step.failure("NodeOperationError", f"{type(error).__name__}: {error}") from error


def _response(step: Step) -> Answer:
    options = step.parameters.get("options", {})
    status = int(step.resolved(options.get("responseCode", 200)))
    entries = options.get("responseHeaders", {}).get("entries", [])
    headers = {entry["name"]: str(step.resolved(entry["value"])) for entry in entries}
    body, content_type = _response_body(step, step.parameters.get("respondWith", "firstIncomingItem"))
    return Answer(status, body, content_type, headers)


def _response_body(step: Step, kind: str) -> tuple[bytes, str | None]:
    if kind == "noData":
        return b"", None
    if kind == "allIncomingItems":
        return json_answer([item["json"] for item in step.items]).body, JSON
    if kind == "firstIncomingItem":
        return json_answer(step.items[0]["json"]).body, JSON
    body = step.resolved(step.parameters.get("responseBody", ""))
    text = body if isinstance(body, str) else stringify(body)
    return text.encode(), JSON if kind == "json" else HTML


def _thrown(text: str) -> dict[str, Any]:
    """An error of a Code node: unlike others it names neither itself nor its node, and has the line in its message."""
    fields: dict[str, Any] = {"level": "error", "tags": {}, "description": None, "lineNumber": 1}
    fields |= {"message": f"{text} [line 1]"}
    return fields | {"stack": trace("Error", text, "VmCodeWrapper (evalmachine:1:7)")}


def _item(value: Any) -> Item:
    return {"json": value, "pairedItem": {"item": 0}}


def _view(items: list[Item]) -> dict[str, Any]:
    """`$input` and `$("…")`."""
    first = items[0] if items else None
    return {"first": lambda: first, "item": first, "all": lambda: items}


def _output_of(execution: Execution, name: str) -> list[Item]:
    runs = execution.run_data.get(name)
    if not runs:
        raise ScriptError(f"Referenced node '{name}' was not executed")
    branches: list[list[Item]] = runs[-1]["data"]["main"]
    return next((branch for branch in branches if branch), [])
