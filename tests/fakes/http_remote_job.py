"""The driver of the scripted job server, and what a hub needs to offer it as a tool: the model for real drivers.

What makes a driver right: it tells "refused" (ToolFailure), "nobody can tell" (RemoteUnclear) and "ask again" (the
poller's Unreachable) apart by what the other side can have done, never by how bad the error looks.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
from msgspec.structs import replace

from toolhub_service.adapters.remote import RemoteExecutor
from toolhub_service.adapters.remote_polling import Answer, Poller, Unreachable
from toolhub_service.adapters.upstream import retry_after_s
from toolhub_service.domain.call import NO_PRECONDITIONS, GrantedCall, PlannedCall, Preconditions
from toolhub_service.domain.errors.failure import ErrorKind, RemoteUnclear, refuse
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.ports import NOTHING_FIXED, EventSink, FixedTerms
from toolhub_service.domain.result import Outcome, Progress
from toolhub_service.domain.tool import Annotations, CostHints, IdempotencyMode, ToolKind, ToolLimits, ToolSpec

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_ENDS = frozenset({"succeeded", "failed", "cancelled"})


class HttpRemoteJob:
    """Implements `RemoteJob` for one server; `client` and `poller` are shared by all its jobs."""

    def __init__(self, client: httpx.AsyncClient, url: str, poller: Poller) -> None:
        self._client = client
        self._url = url
        self._poller = poller

    async def start(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark:
        try:
            answer = await self._client.post(
                f"{self._url}/jobs", json=dict(call.args), headers={"Idempotency-Key": mark.key}
            )
        except _NOT_SENT as closed:
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The job server accepts no connection. Try later.") from closed
        except httpx.TransportError as broken:
            raise RemoteUnclear("The connection broke before the answer came") from broken
        if 400 <= answer.status_code < 500 and answer.status_code != httpx.codes.REQUEST_TIMEOUT:
            raise refuse(ErrorKind.UPSTREAM_ERROR, "The job server refused the job.", retryable=False)
        return self._accepted(mark, _fields(answer))

    async def find(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark | None:
        try:
            answer = await self._client.get(f"{self._url}/jobs", params={"key": mark.key})
        except httpx.TransportError as broken:
            raise RemoteUnclear("It cannot be looked up: the connection broke") from broken
        jobs = _fields(answer).get("jobs")
        if not isinstance(jobs, list):
            raise RemoteUnclear("It cannot be looked up: the answer is not readable")
        return self._accepted(mark, jobs[0]) if jobs else None

    async def follow(self, call: GrantedCall, mark: RemoteMark) -> AsyncIterator[Progress]:
        was_missing = False

        async def ask() -> Answer[Progress]:
            nonlocal was_missing
            answer = await self._asked("GET", f"/jobs/{mark.remote_id}")
            if answer.status_code == httpx.codes.NOT_FOUND:
                if was_missing:
                    raise RemoteUnclear("The job server knows no such job any more")
                was_missing = True  # it may be on its way from one list to another: only the second time counts
                raise Unreachable
            was_missing = False
            if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
                raise refuse(ErrorKind.PERMISSION_DENIED, "The job server does not let the hub look at this job.")
            return _progress(answer)

        async for progress in self._poller.poll(ask, key=mark.key):
            yield progress

    async def cancel(self, call: GrantedCall, mark: RemoteMark) -> bool:
        try:
            answer = await self._client.delete(f"{self._url}/jobs/{mark.remote_id}")
        except httpx.TransportError as broken:
            raise RemoteUnclear("The connection broke before the answer came") from broken
        if answer.status_code == httpx.codes.METHOD_NOT_ALLOWED:
            return False
        if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
            raise refuse(ErrorKind.PERMISSION_DENIED, "The job server does not let the hub stop this job.")
        if answer.status_code not in {httpx.codes.ACCEPTED, httpx.codes.CONFLICT}:
            raise RemoteUnclear(f"The job server answered {answer.status_code}")
        self._poller.poll_now(mark.key)
        return True

    async def collect(self, call: GrantedCall, mark: RemoteMark) -> Outcome:
        async def ask() -> Answer[dict[str, Any]]:
            answer = await self._asked("GET", f"/jobs/{mark.remote_id}/result")
            if answer.status_code != httpx.codes.OK:
                raise RemoteUnclear(f"The job server answered {answer.status_code} for the result")
            return Answer(_fields(answer))

        reply = await self._poller.answer(ask)
        if reply.get("state") == "cancelled":
            raise refuse(ErrorKind.CANCELLED, "The job was stopped before its end.")
        if reply.get("state") == "failed":
            raise refuse(ErrorKind.UPSTREAM_ERROR, "The job ran and failed.", retryable=False)
        if reply.get("state") != "succeeded":
            raise RemoteUnclear("The result is not readable")
        return Outcome(value={"value": reply.get("value")})

    def _accepted(self, mark: RemoteMark, fields: dict[str, Any]) -> RemoteMark:
        remote_id = fields.get("id")
        if not isinstance(remote_id, str) or not remote_id:
            raise RemoteUnclear("The answer does not name the job")
        return replace(mark, remote_id=remote_id, accepted=True, endpoint=self._url)

    async def _asked(self, method: str, path: str) -> httpx.Response:
        """An answer that says something, whatever it says. Raises Unreachable for any other."""
        try:
            answer = await self._client.request(method, self._url + path)
        except httpx.TransportError as broken:
            raise Unreachable from broken
        if answer.status_code >= 500 or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise Unreachable(retry_after_s(answer.headers.get("retry-after")))
        return answer


def _progress(answer: httpx.Response) -> Answer[Progress]:
    fields = _fields(answer)
    state, step, total = fields.get("state"), fields.get("step"), fields.get("total")
    if not isinstance(step, int) or not isinstance(total, int):
        raise Unreachable  # 200 with something else: a proxy's page, most likely
    message = str(fields.get("message", ""))
    return Answer(Progress(step, total, unit="steps", message=message), is_over=state in _ENDS)


def _fields(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of a successful answer; empty for anything else."""
    if not answer.is_success:
        return {}
    try:
        fields = json.loads(answer.content)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


class HttpJobAdapter:
    """Implements `Adapter` for tools that are run by the scripted job server."""

    def __init__(self, executor: RemoteExecutor, kind: ToolKind = ToolKind.N8N) -> None:
        self.kind = kind
        self._executor = executor

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        return await self._executor.execute(call, sink)

    def effects(self, call: GrantedCall) -> Sequence[str]:
        return (f"Begin a job of {call.args.get('steps', 2)} steps on a remote side.",)

    async def preconditions(self, planned: PlannedCall) -> Preconditions:
        return NO_PRECONDITIONS

    def has_side_effects(self, planned: PlannedCall) -> bool:
        return planned.spec.has_side_effects

    def fixed_terms(self, spec: ToolSpec) -> FixedTerms:
        return NOTHING_FIXED

    def resumes(self, spec: ToolSpec) -> bool:
        return True

    def upstream(self, planned: PlannedCall) -> str:
        return planned.spec.upstream_key


def remote_tool(
    name: str = "n8n/render.start",
    *,
    kind: ToolKind = ToolKind.N8N,
    url: str = "",
    annotations: Annotations = Annotations(open_world=True, supports_progress=True),  # noqa: B008  a frozen value
) -> ToolSpec:
    """An asynchronous tool; its arguments are the fields of `Work`."""
    properties = {
        "steps": {"type": "integer"},
        "seconds": {"type": "number"},
        "holds": {"type": "boolean"},
        "fails": {"type": "boolean"},
        "result": {},
        "stops_after": {"type": "integer"},
    }
    return ToolSpec(
        name=name,
        kind=kind,
        description="Runs a job on a scripted job server.",
        input_schema={"type": "object", "properties": properties, "additionalProperties": False},
        output_schema={"type": "object"},
        annotations=annotations,
        cost=CostHints(is_async=True),
        limits=ToolLimits(timeout_s=3_600.0),
        idempotency=IdempotencyMode.DERIVED,
        source="registered",
        endpoint=url,
        upstream="jobs:scripted",
    )
