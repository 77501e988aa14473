"""Executions as n8n keeps them, the shapes in which its API returns them, and the quirks of its list.

Measured on 2.8.4: a list without `status` leaves out what runs or waits, `status=waiting` is always empty, and an
execution that has just ended may be missing for a moment. `finished` stays false on anything but success. One at work
is returned as it was begun: nothing has run, and what it began with is yet to run. One that waits has a `stoppedAt`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.n8n.answers import Answer
from tests.fakes.n8n.moments import epoch_ms, iso
from tests.fakes.n8n.workflows import Workflow, with_defaults

ACTIVE = frozenset({"running", "waiting"})


@dataclass
class Execution:
    number: int
    workflow: Workflow
    mode: str = "webhook"
    status: str = "running"
    retry_of: int | None = None
    retry_success_id: str | None = None
    created_at: str = field(default_factory=iso)
    started_at: str = field(default_factory=iso)
    stopped_at: str | None = None
    wait_till: str | None = None
    established_ms: int = field(default_factory=epoch_ms)
    trigger: dict[str, Any] = field(default_factory=dict)
    """The node that it began with."""
    first: dict[str, Any] = field(default_factory=dict)
    """The item that it began with."""
    at_work: dict[str, Any] = field(default_factory=dict)
    """The node that runs, or ran last, with its input."""
    run_data: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    steps: int = 0
    """Nodes that it has run itself; a retry takes over what others ran."""
    last_node: str = ""
    error: dict[str, Any] | None = None
    left: list[dict[str, Any]] = field(default_factory=list)
    """The node that failed with its input: where a retry goes on."""
    custom_data: dict[str, str] = field(default_factory=dict)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether its waits are over, whatever the clock says."""
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    answer: asyncio.Future[Answer] = field(default_factory=asyncio.Future)
    """To the caller of the webhook."""

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE

    @property
    def output(self) -> list[dict[str, Any]]:
        """The items of the node that ran last."""
        runs = self.run_data.get(self.last_node, [{}])
        branches: list[list[dict[str, Any]]] = runs[-1].get("data", {}).get("main", [])
        return next((branch for branch in branches if branch), [])

    def listed(self, *, with_data: bool) -> dict[str, Any]:
        """A row of `GET /executions`."""
        fields = self._head() | {"startedAt": self.started_at, "stoppedAt": self.stopped_at}
        fields |= {"workflowId": self.workflow.id, "waitTill": self.wait_till}
        return fields | self._inside() if with_data else fields

    def got(self, *, with_data: bool) -> dict[str, Any]:
        """`GET /executions/{id}`."""
        fields = self._head() | {"createdAt": self.created_at, "startedAt": self.started_at}
        fields |= {"stoppedAt": self.stopped_at, "deletedAt": None, "workflowId": self.workflow.id}
        fields |= {"waitTill": self.wait_till, "storedAt": "db"}
        return fields | self._inside() if with_data else fields

    def as_stopped(self) -> dict[str, Any]:
        """The answer to a stop."""
        fields: dict[str, Any] = {"mode": self.mode, "startedAt": self.started_at, "stoppedAt": self.stopped_at}
        return fields | {"finished": False, "status": self.status}

    def as_retried(self) -> dict[str, Any]:
        """The answer to a retry, in which `retryOf` is a number."""
        fields: dict[str, Any] = {
            "id": self.id,
            "mode": self.mode,
            "startedAt": self.started_at,
            "workflowId": self.workflow.id,
        }
        fields |= {"finished": self.status == "success", "retryOf": self.retry_of, "status": self.status}
        return fields | {"data": self._data()}

    def _head(self) -> dict[str, Any]:
        retry_of = None if self.retry_of is None else str(self.retry_of)
        fields = {"id": self.id, "finished": self.status == "success", "mode": self.mode, "retryOf": retry_of}
        return fields | {"retrySuccessId": self.retry_success_id, "status": self.status}

    def _inside(self) -> dict[str, Any]:
        kept = self.workflow.begun() if self.status == "running" else self.workflow.kept()
        fields = {"data": self._data(), "workflowData": kept}
        return fields | {"customData": dict(self.custom_data)}

    def _data(self) -> dict[str, Any]:
        return self._begun() if self.status == "running" else self._done()

    def _begun(self) -> dict[str, Any]:
        stack = {"node": with_defaults(self.trigger), "data": {"main": [[{"json": self.first.get("json")}]]}}
        inner = {"contextData": {}, "nodeExecutionStack": [stack | {"source": None}], "metadata": {}}
        inner |= {"waitingExecution": {}, "waitingExecutionSource": {}}
        return {"version": 1, "startData": {}, "resultData": {"runData": {}}, "executionData": inner}

    def _waiting(self) -> dict[str, Any]:
        """The run of the node that waits."""
        fields = {"startTime": epoch_ms(), "executionIndex": self.steps - 1, "source": self.at_work["source"]["main"]}
        fields |= {"hints": [], "executionTime": 0, "executionStatus": "waiting"}
        return fields | {"data": self.at_work["data"]}

    def _done(self) -> dict[str, Any]:
        result: dict[str, Any] = {"error": self.error} if self.error else {}
        result |= {"runData": self.run_data, "lastNodeExecuted": self.last_node}
        if self.custom_data:
            result["metadata"] = dict(self.custom_data)
        trigger = {"name": self.trigger.get("name"), "type": self.trigger.get("type")}
        runtime = {"version": 1, "establishedAt": self.established_ms, "source": "webhook", "triggerNode": trigger}
        inner: dict[str, Any] = {
            "contextData": {},
            "nodeExecutionStack": self.left,
            "metadata": {},
            "waitingExecution": {},
        }
        inner |= {"waitingExecutionSource": {}, "runtimeData": runtime}
        fields = {"version": 1, "startData": {}, "resultData": result, "executionData": inner}
        if self.status != "waiting":
            return fields
        result["runData"] = self.run_data | {self.last_node: [self._waiting()]}
        inner["nodeExecutionStack"] = [self.at_work]
        return fields | {"waitTill": self.wait_till}


class ExecutionBook:
    """All executions that n8n still knows, and how many there ever were."""

    def __init__(self) -> None:
        self.known: dict[str, Execution] = {}
        self.began: list[Execution] = []
        """Every one that ever began, pruned ones as well: what really happened."""
        self.next_number = 1
        self._hidden: dict[str, int] = {}

    def __getitem__(self, execution_id: str | int) -> Execution:
        return self.known[str(execution_id)]

    def __iter__(self) -> Iterator[Execution]:
        return iter(list(self.known.values()))

    def __len__(self) -> int:
        return len(self.known)

    def add(self, workflow: Workflow, **traits: Any) -> Execution:
        execution = Execution(self.next_number, workflow, **traits)
        self.next_number += 1
        self.known[execution.id] = execution
        self.began.append(execution)
        return execution

    def forget(self, execution_id: str | int | None = None) -> None:
        """Prune one, or all."""
        for known in [str(execution_id)] if execution_id is not None else list(self.known):
            self.known.pop(known, None)

    def hide(self, execution_id: str | int, lists: int = 1) -> None:
        """Leave it out of the next so many lists."""
        self._hidden[str(execution_id)] = lists

    def page(self, query: Mapping[str, str]) -> dict[str, Any]:
        """`GET /executions`, newest first."""
        cursor = read_cursor(query["cursor"]) if "cursor" in query else {}
        limit = int(cursor.get("limit", query.get("limit", 100)))
        rows = self._matching(query, int(cursor.get("lastId", 0)))
        page, more = rows[:limit], len(rows) > limit
        with_data = query.get("includeData") == "true"
        after = cursor_of(lastId=page[-1].id, limit=limit) if more else None
        return {"data": [row.listed(with_data=with_data) for row in page], "nextCursor": after}

    def _matching(self, query: Mapping[str, str], before: int) -> list[Execution]:
        hidden = {known for known, lists in self._hidden.items() if lists > 0}
        self._hidden = {known: lists - 1 for known, lists in self._hidden.items() if lists > 1}
        rows = sorted(self.known.values(), key=lambda row: -row.number)
        workflow_id = query.get("workflowId")
        return [
            row
            for row in rows
            if _is_listed(row, query.get("status"))
            and row.id not in hidden
            and (not before or row.number < before)
            and (workflow_id is None or row.workflow.id == workflow_id)
        ]


def _is_listed(row: Execution, status: str | None) -> bool:
    if status is None:
        return not row.is_active
    return status != "waiting" and row.status == status


def cursor_of(**fields: Any) -> str:
    return base64.b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode()


def read_cursor(cursor: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(base64.b64decode(cursor))
    return read
