"""A workflow that continues after its answer, as a remote job: its execution is followed through the API.

The start is a webhook call under the mark's key, answered with an execution's id. A start whose answer is lost is
looked up by that key; finding nothing proves nothing, so it is sent again only where the workflow itself
`deduplicates`. An execution that n8n no longer has (pruned, or never saved) is LOST, because its success is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from toolhub_service.adapters.n8n import failures
from toolhub_service.adapters.n8n.answers import Unreadable, execution_id_in, read_in_thread
from toolhub_service.adapters.n8n.api import ApiError, ApiRefused, ApiTooLarge, N8nApi, NotFound, Stop
from toolhub_service.adapters.n8n.calling import WorkflowCaller
from toolhub_service.adapters.n8n.client import NoReply
from toolhub_service.adapters.n8n.execution import Execution, NoData, is_of_another_call
from toolhub_service.adapters.n8n.server import N8nServer, Sent, facts, facts_of_found, send
from toolhub_service.adapters.n8n.workflow import ID, Workflow
from toolhub_service.adapters.remote_polling import Answer, PollTerms, Unreachable
from toolhub_service.adapters.upstream import no_source
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, RemoteUnclear, refuse
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.result import Outcome, Progress

POLLS: Final = PollTerms(first_s=0.25, longest_s=10.0, per_s=20.0)
START_S: Final = 60.0
"""Timeout of the answer that names the execution."""
_SENT_AT: Final = "sent_at_unix_ms"
_SAVED: Final = "n8n may have pruned it, or is set not to save executions of this workflow."
_NO_KEY: Final = "The source no longer has an `api_key`, so the execution cannot be followed."
_REFUSED_PAUSE_S: Final = 15.0
# Consecutive polls without an answer before this is reported to watchers.
_SILENT_POLLS: Final = 3


@dataclass(frozen=True, slots=True)
class MissingTerms:
    """How long an execution may be missing: n8n may list it only a moment after it has named it."""

    polls: int = 4
    timeout_s: float = 3.0


class N8nJob:
    """Implements `RemoteJob` over the executions of one server."""

    def __init__(self, server: N8nServer, caller: WorkflowCaller, missing: MissingTerms | None = None) -> None:
        self._server = server
        self._caller = caller
        self._missing = missing or MissingTerms()

    async def start(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark:
        workflow = self._server.workflows.get(call.spec.resource_id)
        if workflow is None:
            raise no_source(call)
        until_s = min(call.deadline_s, asyncio.get_running_loop().time() + START_S)
        try:
            sent = await send(self._server, workflow, call, mark.key, deadline_s=until_s)
        except NoReply as broken:
            if not broken.was_sent:
                raise failures.not_sent(call, broken.reason) from None
            raise RemoteUnclear(broken.reason) from broken
        return await self._mark_of_answer(workflow, call, mark, sent)

    async def find(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark | None:
        workflow = self._server.workflows.get(call.spec.resource_id)
        workflow_id = mark.details.get("workflow_id") or (workflow.workflow_id if workflow else "")
        sent_at = mark.details.get(_SENT_AT, "")
        try:
            found = await self._api().find(workflow_id, mark.key, int(sent_at) if sent_at.isdecimal() else 0)
        except ApiError as error:
            raise RemoteUnclear(error.reason) from error
        if found is not None:
            known = facts_of_found(self._server, workflow.webhook if workflow else None, found)
            return _mark_with_execution(mark, found.execution.id, known)
        if call.safe_to_repeat:
            return None
        raise RemoteUnclear("Its execution was not found by its key; it may have run all the same.")

    async def follow(self, call: GrantedCall, mark: RemoteMark) -> AsyncIterator[Progress]:
        look = _ExecutionPoll(self._api(), mark.remote_id, self._missing)
        async for progress in self._server.poller.poll(look, key=mark.remote_id):
            yield progress

    async def cancel(self, call: GrantedCall, mark: RemoteMark) -> bool:
        try:
            await self._own(call, mark)
            stop = await self._api().stop(_check_id(mark.remote_id))
        except ApiRefused as refused:
            raise refuse(ErrorKind.UPSTREAM_ERROR, refused.reason, retryable=False) from refused
        except ApiError as error:
            raise RemoteUnclear(error.reason) from error
        except NotFound:
            raise RemoteUnclear(f"n8n does not know the execution any more. {_SAVED}") from None
        self._server.poller.poll_now(mark.remote_id)
        return stop is not Stop.IMPOSSIBLE

    async def collect(self, call: GrantedCall, mark: RemoteMark) -> Outcome:
        execution = await self._server.poller.answer(lambda: self._result(call, mark))
        self._check_own_execution(call, mark, execution)
        workflow = self._server.workflows.get(call.spec.resource_id)
        known = dict(mark.details) | facts(self._server, workflow.webhook if workflow else None, execution)
        try:
            return await self._caller.outcome(self._server, workflow, call, execution, known)
        except NoData:
            raise RemoteUnclear(f"It ended with {execution.status}, and n8n did not save its result.") from None

    async def _result(self, call: GrantedCall, mark: RemoteMark) -> Answer[Execution]:
        try:
            execution = await self._api().execution(_check_id(mark.remote_id), with_data=True)
        except NotFound:
            raise RemoteUnclear(f"n8n does not know the execution any more. {_SAVED}") from None
        except ApiTooLarge:
            raise failures.too_large(call, self._server.terms.entry.max_response_bytes, mark.details) from None
        except ApiError as error:
            raise Unreachable(error.retry_after_s) from error
        return Answer(execution, is_over=True)

    async def _own(self, call: GrantedCall, mark: RemoteMark) -> None:
        """Raises RemoteUnclear for another call's execution, ApiError, NotFound."""
        api, execution_id = self._api(), _check_id(mark.remote_id)
        try:
            execution = await api.execution(execution_id, with_data=True)
        except ApiTooLarge:
            # Without its data at least the workflow is known, though not the key.
            execution = await api.execution(execution_id, with_data=False)
        self._check_own_execution(call, mark, execution)

    def _check_own_execution(self, call: GrantedCall, mark: RemoteMark, execution: Execution) -> None:
        """Check that the named execution is the call's own. Raises RemoteUnclear.

        An answer that repeats its caller's words may name any execution, which the hub could read and stop.
        """
        workflow = self._server.workflows.get(call.spec.resource_id)
        if is_of_another_call(execution, mark.key, workflow.workflow_id if workflow else ""):
            raise RemoteUnclear(f"The answer names execution {execution.id}, which another call started.")

    async def _mark_of_answer(self, workflow: Workflow, call: GrantedCall, mark: RemoteMark, sent: Sent) -> RemoteMark:
        """Return the mark of the execution that the answer names. Raises ToolFailure, RemoteUnclear."""
        answer = sent.answer
        if failures.is_unknown(answer):
            raise RemoteUnclear(failures.gave_up(answer))
        if answer.status == 409 and workflow.entry.deduplicates:
            raise RemoteUnclear("The workflow already knows the key.")
        # Looked up by its key: the execution may contain more than "Error in workflow".
        if failures.is_in_workflow(answer) or answer.is_cut:
            raise RemoteUnclear("n8n answered that the workflow failed, or with a response that is too large.")
        if not 200 <= answer.status < 300:
            raise failures.answer_failure(call, answer, self._caller.redact)
        try:
            execution_id = execution_id_in(answer, (await read_in_thread(answer)).value, workflow.entry.execution_id)
        except Unreadable:
            execution_id = ""
        if not execution_id:
            raise RemoteUnclear("The answer names no execution.")
        return _mark_with_execution(mark, execution_id, facts(self._server, sent.webhook, None, execution_id))

    def _api(self) -> N8nApi:
        if self._server.api is None:
            raise RemoteUnclear(_NO_KEY)
        return self._server.api


class _ExecutionPoll:
    """Polls the state of one execution; called by the poller."""

    def __init__(self, api: N8nApi, execution_id: str, missing: MissingTerms) -> None:
        self._api = api
        self._execution_id = _check_id(execution_id)
        self._terms = missing
        self._missed = 0
        self._missed_since_s = 0.0
        self._silent = 0

    async def __call__(self) -> Answer[Progress]:
        """Return the progress. Raises Unreachable, and RemoteUnclear when n8n does not know the execution."""
        try:
            execution = await self._api.execution(self._execution_id, with_data=False)
        except NotFound:
            return self._not_found()
        except ApiRefused as refused:
            # An operator can correct the key while the execution continues, so it is polled again.
            return Answer(_progress(refused.reason), retry_after_s=_REFUSED_PAUSE_S)
        except ApiError as error:
            return self._no_reply(error)
        self._missed = self._silent = 0
        return Answer(_progress_of(execution), is_over=execution.is_over)

    def _no_reply(self, error: ApiError) -> Answer[Progress]:
        """Report a missing answer only when it lasts. Raises Unreachable."""
        self._silent += 1
        if self._silent < _SILENT_POLLS:
            raise Unreachable(error.retry_after_s) from error
        message = f"{error.reason} The hub will ask n8n again."
        return Answer(_progress(message), retry_after_s=error.retry_after_s)

    def _not_found(self) -> Answer[Progress]:
        now_s = asyncio.get_running_loop().time()
        # n8n saves an execution a moment after it has answered: a few misses at the start are normal.
        self._missed_since_s = self._missed_since_s if self._missed else now_s
        self._missed += 1
        if self._missed >= self._terms.polls and now_s - self._missed_since_s >= self._terms.timeout_s:
            raise RemoteUnclear(f"n8n does not know the execution any more. {_SAVED}")
        raise Unreachable


def _progress_of(execution: Execution) -> Progress:
    # A Wait of more than 65 s is stored as `waiting`, with its end; a shorter one stays `running`.
    if execution.status == "waiting":
        until = f" until {execution.wait_till}" if execution.wait_till else " for something outside"
        return _progress(f"waiting{until}")
    return _progress(execution.status, is_over=execution.is_over)


def _progress(message: str, *, is_over: bool = False) -> Progress:
    return Progress(step=float(is_over), total=1.0, unit="execution", message=message)


def _mark_with_execution(mark: RemoteMark, execution_id: str, known: dict[str, str]) -> RemoteMark:
    return replace(mark, remote_id=execution_id, accepted=True, details={**mark.details, **known})


def _check_id(execution_id: str) -> str:
    """Return an id that is safe in a URL. Raises RemoteUnclear."""
    if not ID.fullmatch(execution_id):
        raise RemoteUnclear("The stored value is not an execution id.")
    return execution_id
