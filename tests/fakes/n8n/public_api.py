"""`/api/v1`: workflows, tags and executions, for callers with a key.

Two different 404: `not found` is a route that this version does not have, `Not Found` a thing that does not exist.
Not measured, and as the source of n8n reads: 400 over the limit of a page, 403 for a missing scope, 405 for a wrong
method, 400 for deleting what runs, the answers of `/stop` from 2.10 on (200 with the execution, 404 `Not Found`).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from tests.fakes.n8n.answers import Answer, json_answer, message
from tests.fakes.n8n.executions import Execution, cursor_of, read_cursor
from tests.fakes.n8n.workflows import Workflow, created, tag_of
from tests.fakes.n8n.world import RecordedRequest, ServerState

LONGEST_PAGE = 250
NO_ROUTE = "not found"
NO_THING = "Not Found"
Act = Callable[[RecordedRequest, str], Awaitable[Answer]]


class PublicApi:
    def __init__(self, world: ServerState) -> None:
        self._world = world
        workflows, executions = "/api/v1/workflows", "/api/v1/executions"
        self._routes: list[tuple[str, str, str, Act]] = [
            ("GET", workflows, "workflow:list", self._list_workflows),
            ("POST", workflows, "workflow:create", self._create_workflow),
            ("GET", f"{workflows}/([^/]+)", "workflow:read", self._get_workflow),
            ("DELETE", f"{workflows}/([^/]+)", "workflow:delete", self._delete_workflow),
            ("POST", f"{workflows}/([^/]+)/activate", "workflow:activate", self._activate),
            ("POST", f"{workflows}/([^/]+)/deactivate", "workflow:deactivate", self._deactivate),
            ("GET", f"{workflows}/([^/]+)/tags", "workflowTags:list", self._get_tags),
            ("PUT", f"{workflows}/([^/]+)/tags", "workflowTags:update", self._set_tags),
            ("GET", executions, "execution:list", self._list_executions),
            ("GET", f"{executions}/([^/]+)", "execution:read", self._get_execution),
            ("DELETE", f"{executions}/([^/]+)", "execution:delete", self._delete_execution),
            ("POST", f"{executions}/([^/]+)/retry", "execution:retry", self._retry),
        ]
        if world.can_stop:
            self._routes.append(("POST", f"{executions}/([^/]+)/stop", "execution:stop", self._stop))

    async def answer(self, asked: RecordedRequest) -> Answer:
        fitting = [(route, found) for route in self._routes if (found := re.fullmatch(route[1], asked.path))]
        if not fitting:
            return message(404, NO_ROUTE)
        if "x-n8n-api-key" not in asked.headers:
            return message(401, "'X-N8N-API-KEY' header required")
        scopes = self._world.keys.get(asked.headers["x-n8n-api-key"])
        if scopes is None:
            return message(401, "unauthorized")
        for (method, _, scope, act), found in fitting:
            if method == asked.method:
                return await act(asked, found[1] if found.groups() else "") if scope in scopes else _forbidden()
        return message(405, f"{asked.method} method not allowed")

    async def _list_workflows(self, asked: RecordedRequest, _: str) -> Answer:
        cursor = read_cursor(asked.query["cursor"]) if "cursor" in asked.query else {}
        limit, offset = int(cursor.get("limit", asked.query.get("limit", 100))), int(cursor.get("offset", 0))
        if limit > LONGEST_PAGE:
            return message(400, f"request/query/limit must be <= {LONGEST_PAGE}")
        rows = [row for _, row in sorted(self._world.workflows.items()) if _fits(row, asked)]
        with_pins = asked.query.get("excludePinnedData") != "true"
        page = [row.listed(with_pins=with_pins) for row in rows[offset : offset + limit]]
        more = offset + limit < len(rows)
        return json_answer(
            {"data": page, "nextCursor": cursor_of(limit=limit, offset=offset + limit) if more else None}
        )

    async def _create_workflow(self, asked: RecordedRequest, _: str) -> Answer:
        for wanted in ("name", "nodes", "connections", "settings"):
            if wanted not in asked.json:
                return message(400, f"request/body must have required property '{wanted}'")
        workflow = created(asked.json)
        self._world.workflows[workflow.id] = workflow
        return json_answer(workflow.as_created())

    async def _get_workflow(self, _: RecordedRequest, workflow_id: str) -> Answer:
        return self._of(workflow_id, Workflow.got)

    async def _delete_workflow(self, _: RecordedRequest, workflow_id: str) -> Answer:
        answer = self._of(workflow_id, Workflow.got)
        self._world.workflows.pop(workflow_id, None)
        return answer

    async def _activate(self, _: RecordedRequest, workflow_id: str) -> Answer:
        return self._of(workflow_id, Workflow.activate)

    async def _deactivate(self, _: RecordedRequest, workflow_id: str) -> Answer:
        return self._of(workflow_id, Workflow.deactivate)

    async def _get_tags(self, _: RecordedRequest, workflow_id: str) -> Answer:
        return self._of(workflow_id, lambda workflow: workflow.tags)

    async def _set_tags(self, asked: RecordedRequest, workflow_id: str) -> Answer:
        known = {tag["id"]: tag for row in self._world.workflows.values() for tag in row.tags}
        tags = [known.get(tag["id"]) or tag_of(tag | {"name": tag["id"]}) for tag in asked.json]
        if workflow_id in self._world.workflows:
            self._world.workflows[workflow_id].tags = tags
        return self._of(workflow_id, lambda workflow: workflow.tags)

    def _of(self, workflow_id: str, as_fields: Callable[[Workflow], Any]) -> Answer:
        workflow = self._world.workflows.get(workflow_id)
        return message(404, NO_THING) if workflow is None else json_answer(as_fields(workflow))

    async def _list_executions(self, asked: RecordedRequest, _: str) -> Answer:
        if int(asked.query.get("limit", 100)) > LONGEST_PAGE:
            return message(400, f"request/query/limit must be <= {LONGEST_PAGE}")
        return json_answer(self._world.book.page(asked.query))

    async def _get_execution(self, asked: RecordedRequest, execution_id: str) -> Answer:
        execution = self._known(execution_id)
        if execution is None:
            return message(404, NO_THING)
        return json_answer(execution.got(with_data=asked.query.get("includeData") == "true"))

    async def _delete_execution(self, _: RecordedRequest, execution_id: str) -> Answer:
        execution = self._known(execution_id)
        if execution is None:
            return message(404, NO_THING)
        if execution.status == "running":
            return message(400, "Cannot delete a running execution")
        self._world.book.forget(execution_id)
        return json_answer(execution.got(with_data=False) | {"id": execution.number})

    async def _retry(self, _: RecordedRequest, execution_id: str) -> Answer:
        """Answered at the end of the new execution."""
        execution = self._known(execution_id)
        if execution is None:
            return message(404, NO_THING)
        if not execution.left:
            return message(409, "The execution succeeded, so it cannot be retried.")
        again = self._world.engine.retry(execution)
        await again.has_ended.wait()
        return json_answer(again.as_retried())

    async def _stop(self, _: RecordedRequest, execution_id: str) -> Answer:
        execution = self._known(execution_id)
        if execution is None:
            return message(404, NO_THING)
        if not execution.is_active:
            return message(500, not_stoppable(execution))
        self._world.engine.stop(execution)
        return json_answer(execution.got(with_data=False))

    def _known(self, execution_id: str) -> Execution | None:
        return self._world.book.known.get(execution_id)


def not_stoppable(execution: Execution) -> str:
    return f"Only running or waiting executions can be stopped and {execution.id} is currently {execution.status}"


def _forbidden() -> Answer:
    return message(403, "Forbidden")


def _fits(row: Workflow, asked: RecordedRequest) -> bool:
    """The filters of `GET /workflows`."""
    active, name, tags = (asked.query.get(key) for key in ("active", "name", "tags"))
    return (
        (active is None or row.active == (active == "true"))
        and (name is None or name == row.name)
        and (tags is None or set(tags.split(",")) <= {tag["name"] for tag in row.tags})
    )
