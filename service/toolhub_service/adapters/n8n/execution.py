"""Executions as n8n's public API describes them: results, errors, and the keys of the calls that began them.

result   data.resultData.runData[lastNodeExecuted][-1].data.main[0][*].json: one is the object
         itself, several are an array; beside `json` stands `binary`, the item's files (answers.py)
error    data.resultData.error.message and .node.name; `finished` stays false on errors, so `status` counts
answer   of a Respond node with a body of its own: nowhere, for its data are its input, the request with its headers
start    createdAt: an execution that has waited has the startedAt of its resumption, and a stoppedAt while it waits
key      header x-idempotency-key among the webhook's data: in runData once it has run, in the stack of what is to
         run before that; or any value of customData
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from toolhub_service.adapters.n8n.workflow import KEY_HEADER, RESPOND, WEBHOOK, id_of
from toolhub_service.adapters.upstream import as_object
from toolhub_service.domain.json import JsonObject, JsonValue

# Values of a Respond node's `respondWith` whose answer is in its data.
_PASSED_ON: Final = ("firstIncomingItem", "allIncomingItems")
KEY_MAX_CHARS: Final = 64
"""The hub's own keys are UUIDs."""
_TIME: Final = re.compile(r"[0-9T:.Z+-]{10,40}", re.ASCII)
_STATUS: Final = re.compile(r"[!-~]{1,32}", re.ASCII)
FAILED: Final = frozenset({"error", "crashed", "failed"})
OVER: Final = FAILED | {"success", "canceled", "cancelled"}
"""Any other status is that of an execution which continues, or may: new, running, waiting, unknown."""


class NoData(Exception):
    """The execution is known, but its result is not."""


class AnswerNotKept(NoData):
    """The last node has answered the caller, and its answer is stored nowhere."""


@dataclass(frozen=True, slots=True)
class Execution:
    id: str
    status: str
    workflow_id: str = ""
    workflow_version: str = ""
    started_at: str = ""
    stopped_at: str = ""
    wait_till: str = ""
    mode: str = ""
    """How it was started, such as `webhook`; empty: unknown."""
    data: JsonObject = field(default_factory=dict, repr=False)
    """The whole answer of the API."""

    @property
    def is_over(self) -> bool:
        return self.status in OVER

    @property
    def has_failed(self) -> bool:
        return self.status in FAILED

    @property
    def was_cancelled(self) -> bool:
        return self.status in ("canceled", "cancelled")

    @property
    def started_unix_ms(self) -> int | None:
        return unix_ms(self.started_at)

    @property
    def duration_ms(self) -> int | None:
        started, stopped = unix_ms(self.started_at), unix_ms(self.stopped_at)
        return None if started is None or stopped is None else max(0, stopped - started)


def execution_of(value: JsonValue) -> Execution | None:
    """Return the execution; None when the value does not describe one."""
    answer = as_object(value)
    if answer is None:
        return None
    own_id, status = id_of(answer.get("id")), answer.get("status")
    if not own_id or not isinstance(status, str):
        return None
    return Execution(
        id=own_id,
        # It is shown in messages and evidence, so a server's text of any length is not used.
        status=status.lower() if _STATUS.fullmatch(status) else "unknown",
        workflow_id=id_of(answer.get("workflowId")),
        workflow_version=id_of(answer.get("workflowVersionId")),
        # When it was called; `startedAt` is when n8n began to run it, and null while it is queued.
        started_at=_time(answer.get("createdAt")) or _time(answer.get("startedAt")),
        stopped_at=_time(answer.get("stoppedAt")),
        wait_till=_time(answer.get("waitTill")),
        mode=mode if isinstance(mode := answer.get("mode"), str) else "",
        data=answer,
    )


def result_of(execution: Execution) -> JsonValue:
    """Return the last node's result. Raises NoData when n8n does not report it, AnswerNotKept when only the caller got
    it."""
    items = [item.get("json") for item in result_items(execution)]
    # A list only for several items: most workflows end with one.
    return items[0] if len(items) == 1 else items or None


def result_items(execution: Execution) -> list[JsonObject]:
    """Return the whole items of the last node: `json`, and `binary` where they have files. Raises as `result_of`."""
    last = _last_node(execution)
    runs = _at(execution.data, "data", "resultData", "runData").get(last)
    if not isinstance(runs, Sequence) or not runs:
        raise NoData
    if _has_own_response(execution, last):
        raise AnswerNotKept
    return _items(runs[-1])


def answer_of(execution: Execution) -> JsonValue:
    """Return what its webhook would have answered: the first item of the last node, or all. Raises as `result_of`."""
    result = result_of(execution)
    parameters = next((_at(node, "parameters") for node in _nodes(execution) if node.get("type") == WEBHOOK), {})
    if parameters.get("responseMode") != "lastNode":
        return result
    if parameters.get("responseData") == "allEntries":
        return result if isinstance(result, list) else [] if result is None else [result]
    return result[0] if isinstance(result, list) else result


def error_of(execution: Execution) -> tuple[str, str]:
    """Return message and name of the node that failed, as n8n reports them; empty where it does not."""
    error = _at(execution.data, "data", "resultData", "error")
    message, node = error.get("message"), _at(error, "node").get("name")
    # Errors of Code nodes name no node.
    return message if isinstance(message, str) else "", node if isinstance(node, str) else _last_node(execution)


def has_key(execution: Execution, key: str) -> bool:
    """Return whether it was started by the call that was sent with the key."""
    return key in keys_of(execution)


def keys_of(execution: Execution) -> frozenset[str]:
    """Return all values that may be the key of the call that started it."""
    own = _at(execution.data, "customData").values()
    return _keys(execution) | {value for value in own if isinstance(value, str) and len(value) <= KEY_MAX_CHARS}


def has_all_keys(execution: Execution) -> bool:
    """Return whether its keys are complete."""
    # Data of a running execution are saved late: a key may still appear.
    return execution.is_over or bool(_keys(execution))


def is_of_another_call(execution: Execution, key: str, workflow_id: str) -> bool:
    """Return whether it certainly was not started with the key. `workflow_id`: of the call's own workflow; empty:
    unknown."""
    if workflow_id and execution.workflow_id and execution.workflow_id != workflow_id:
        return True
    return bool(_keys(execution)) and not has_key(execution, key)


def unix_ms(text: str) -> int | None:
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1_000) if text else None
    except (ValueError, OverflowError):
        return None


def _last_node(execution: Execution) -> str:
    last = _at(execution.data, "data", "resultData").get("lastNodeExecuted")
    return last if isinstance(last, str) else ""


def _has_own_response(execution: Execution, name: str) -> bool:
    """Return whether the node has answered the caller with something else than its input."""
    for node in _nodes(execution):
        if node.get("name") == name and node.get("type") == RESPOND:
            return _at(node, "parameters").get("respondWith", "firstIncomingItem") not in _PASSED_ON
    return False


def _nodes(execution: Execution) -> list[JsonObject]:
    """Return the nodes of the workflow as it was run."""
    nodes = _at(execution.data, "workflowData").get("nodes")
    return [node for node in nodes if isinstance(node, Mapping)] if isinstance(nodes, list) else []


def _keys(execution: Execution) -> frozenset[str]:
    """Return the keys that its trigger was called with."""
    # A workflow, or its caller, may write a key anywhere in the data. Only in the data of the first nodes it was
    # written by n8n itself, so no others count.
    found = (_at(item, "headers").get(KEY_HEADER) for item in _trigger_items(_at(execution.data, "data")))
    return frozenset(key for key in found if isinstance(key, str) and key)


def _trigger_items(data: JsonObject) -> Iterator[JsonObject]:
    """Yield the first items of the nodes that no node precedes: those that have run, and those that will."""
    for runs in _at(data, "resultData", "runData").values():
        if isinstance(runs, list) and runs:
            yield from _first(runs[0])
    stack = _at(data, "executionData").get("nodeExecutionStack")
    for waiting in stack if isinstance(stack, list) else ():
        yield from _first(waiting)


def _first(run: JsonValue) -> list[JsonObject]:
    if (as_object(run) or {}).get("source"):
        return []  # its data came from another node
    return [fields for item in _items(run)[:1] if (fields := as_object(item.get("json"))) is not None]


def _items(run: JsonValue) -> list[JsonObject]:
    """Return the items of one run of a node: from the first of its outputs that has any."""
    outputs = _at(as_object(run) or {}, "data").get("main")
    for output in outputs if isinstance(outputs, list) else ():
        if isinstance(output, list) and output:
            return [item for item in output if isinstance(item, Mapping)]
    return []


def _at(value: JsonObject, *names: str) -> JsonObject:
    for name in names:
        value = as_object(value.get(name)) or {}
    return value


def _time(value: JsonValue) -> str:
    return value if isinstance(value, str) and _TIME.fullmatch(value) and unix_ms(value) is not None else ""
