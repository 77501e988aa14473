"""One call of a client: run by the pipeline, as a task if it is long, with its plan and its approval.

An approval belongs to one principal and one call with these arguments, so a call that comes again finds its own: once
granted it is used without the client naming it. Meanwhile, the first of these that the client supports: it asks its
user, by an elicitation in the older protocol and an `input_required` result in the newer one; the call waits as a task;
or it is refused with the approval's id. The user is never the approver: only an approver of the hub decides. A plan is
the user's or the model's to commit: `plan_confirmation.py`.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio
from mcp_types import InputResponses
from msgspec import structs

from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.job import Job
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.result import JobState, ToolResult
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.mcp_server.blocks import Taken, content_of, is_blocks, text_bytes_of
from toolhub_service.mcp_server.convert_calls import (
    ARTIFACT_URI,
    META_PREFIX,
    Context,
    answer_of,
    call_of,
    context_of,
    error_to_dict,
    id_of,
    invoke,
    purpose_of,
    resource_link,
    sent_plan,
)
from toolhub_service.mcp_server.elicitation import (
    ACCEPT,
    NOT_ASKED,
    Awaited,
    Prompt,
    awaited_approval,
    how_to_approve,
)
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.offer import FIND_IT, Offer, lasts
from toolhub_service.mcp_server.plan_confirmation import (
    PLAN_STATE,
    read_offered_plan,
    refuse_changed,
    refuse_declined,
    show_arguments,
)
from toolhub_service.mcp_server.relay import Client, Relay
from toolhub_service.mcp_server.tasks import Tasks, declares_tasks
from toolhub_service.runtime.approvals.refusals import AGAIN
from toolhub_service.runtime.long_results.cut_result import cut_to
from toolhub_service.runtime.route import not_found
from toolhub_service.schema import canonical_json
from toolhub_service.schema.tool_schemas import for_tool

_CALLERS_LOGIN: Final = "toolhub credentials login"
_INPUT: Final = "approval"
_LOGIN: Final = "login:"
"""Begins the state of a call that waits for a login."""
_LOGIN_S: Final = 600.0
# For a client of the newer protocol, which asks again, and may wait no longer for an answer.
_LOGIN_AGAIN_S: Final = 45.0
# Calls that may take longer than clients wait run as jobs for clients that support tasks, and become a task if they are
# not over soon.
_PATIENCE_S: Final = 2.0
# Most jobs whose stored whole result is remembered.
_WHOLES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Answered:
    """What a client sent with a call in answer to an `input_required` result."""

    approval_id: str
    """From the state that the SDK has sealed for this principal, tool and arguments."""
    is_accepted: bool
    ticket_id: str = ""
    """Of a login that the user was asked for instead of an approval."""
    plan_digest: str = ""
    """Of the plan that the user was asked about, or had accepted before the approval."""

    @property
    def declines_plan(self) -> bool:
        return bool(self.plan_digest) and not self.approval_id and not self.is_accepted

    @property
    def declines_approval(self) -> bool:
        return bool(self.approval_id) and not self.is_accepted


def parse_approval_answer(request_state: str | None, responses: InputResponses | None) -> Answered | None:
    if request_state is None:
        return None
    response: Any = (responses or {}).get(_INPUT)
    is_accepted = getattr(response, "action", "") == "accept"
    if request_state.startswith(_LOGIN):
        return Answered("", is_accepted, request_state.removeprefix(_LOGIN))
    if request_state.startswith(PLAN_STATE):
        return Answered("", is_accepted, plan_digest=request_state.removeprefix(PLAN_STATE))
    approval_id, _, plan_digest = request_state.partition(" ")
    return Answered(approval_id, is_accepted, plan_digest=plan_digest)


def resume_call(call: Call, came_back: Answered) -> Call:
    """Return the call with what its user has accepted. Approval and plan are from the state sealed for this call: a
    client cannot put others there."""
    call = call._replace(plan_digest=came_back.plan_digest or call.plan_digest)
    return call._replace(approval_id=came_back.approval_id) if came_back.is_accepted else call


class Calling:
    def __init__(self, engine: Engine, offer: Offer, principal_of: Callable[[Context], Principal]) -> None:
        self._engine = engine
        self._offer = offer
        self._wholes: OrderedDict[str, ArtifactRef] = OrderedDict()
        """Artifacts of results that were cut, by job."""
        self.tasks = Tasks(engine, principal_of, self.visible)
        self.relay = Relay(engine.invoker)

    def call(
        self,
        context: Context,
        principal: Principal,
        session_id: str,
        name: str,
        arguments: Mapping[str, Any],
        approval_id: str = "",
        client: Client | None = None,
    ) -> Call:
        """Make the call. `client`: who can be asked during the call, if it can."""
        return call_of(
            self._offer.tool_to_call(principal, name),
            arguments,
            principal,
            context_of(context, principal, session_id),
            call_id=self._engine.call_ids.next(),
            purpose=purpose_of(context),
            approval_id=approval_id or id_of(context, "approval_id"),
            plan_digest=sent_plan(context),
            idempotency_key=id_of(context, "idempotency_key"),
        )._replace(client=client)

    def may_ask_client(self, name: str) -> bool:
        """Return whether the server of the tool, if it has one, may make any request of the client during a call."""
        spec = self._engine.catalog.get(self._offer.tool_of(name))
        return spec is None or bool(self._engine.relays(spec.source))

    async def make(self, context: Context, call: Call, came_back: Answered | None = None) -> dict[str, Any]:
        """Return a CallToolResult, an InputRequiredResult when a person must act first, or a CreateTaskResult."""
        if came_back is not None:
            if came_back.declines_plan:
                return error_to_dict(refuse_declined(self._offer.name_of(call.tool)))
            if came_back.declines_approval:
                return self._refuse_unwanted(call, came_back.approval_id)
            call = resume_call(call, came_back)
            if came_back.is_accepted and came_back.ticket_id and self._engine.logins is not None:
                await self._engine.logins.wait_for_login(came_back.ticket_id, call.principal, _LOGIN_AGAIN_S)
        if declares_tasks(context) and self._lasts(call.tool) and not self._may_be_asked(call):
            return await self._made_as_job(context, call)
        made = await self._make_with_plan(context, call)
        if isinstance(made, dict):
            return made
        call, answer = made
        approval = awaited_approval(answer.error)
        # Only once: an approval that does not fit would otherwise be retried for ever.
        if approval is not None and approval.is_granted and not call.approval_id:
            answer = await self._invoke(context, self._again(call, approval.approval_id))
        elif approval is not None and approval.is_pending:
            return await self._waiting(context, call, answer, approval, came_back)
        if (source := self._login_wanted(answer.error)) and (came_back is None or came_back.is_accepted):
            return await self._logging_in(context, call, answer, source, came_back)
        return await self._answer(context, call, answer)

    async def _make_with_plan(self, context: Context, call: Call) -> tuple[Call, ToolResult] | dict[str, Any]:
        """Make the call, and if its user accepts the plan that it needs, the call that commits this plan. Return the
        call that was answered and the answer of the hub, or as `confirm_plan` the answer for the client."""
        answer = await self._invoke(context, call)
        planned = await self.confirm_plan(context, call, answer.error)
        if planned is None:
            return call, answer
        if not isinstance(planned, Call):
            return planned
        answer = await self._invoke(context, planned)
        return self.refuse_changed_plan(planned, answer.error) or (planned, answer)

    def refuse_changed_plan(self, call: Call, error: ToolError | None) -> dict[str, Any] | None:
        """Return the answer to a call whose user has accepted a plan that does not fit any more: without the new one,
        which the user has not seen. None: it was not refused for that."""
        if error is None or read_offered_plan(error) is None:
            return None
        return error_to_dict(refuse_changed(self._offer.name_of(call.tool), error))

    async def confirm_plan(self, context: Context, call: Call, error: ToolError | None) -> Call | dict[str, Any] | None:
        """Ask the client's user about the plan that a refusal offers. Return the call that commits it; an answer, when
        the user has not agreed or is to be asked first (InputRequiredResult); None when there is no plan, or no user
        who can be asked."""
        plan = read_offered_plan(error)
        if plan is None:
            return None
        name = self._offer.name_of(call.tool)
        prompt = plan.prompt(name, await show_arguments(call, self._engine.redact))
        if prompt.mode(context) != "form":
            return None
        if not context.session.can_send_request:
            return _input_required(prompt.request(context), plan.state)
        said = await prompt.answer(context)
        if said == ACCEPT:
            return self._again(call, call.approval_id)._replace(plan_digest=plan.digest)
        return None if said == NOT_ASKED else error_to_dict(refuse_declined(name))

    async def submit(self, call: Call) -> Job:
        """Submit the call as a job. Raises ToolFailure when there is none."""
        return await self._engine.submission.submit(call)

    async def visible(self, call: Call, answer: ToolResult) -> dict[str, Any]:
        """Return the answer, in which hidden tools look like missing ones. The original was recorded."""
        if answer.error is not None:
            spec = self._engine.catalog.get(call.tool)
            is_unread = spec is None and answer.error.kind is ErrorKind.TOOL_UNAVAILABLE  # as its source is
            if not is_unread and (spec is None or not self._engine.policy.could_allow(call.principal, spec)):
                unknown = not_found(call, self._engine.catalog, self._engine.policy, self._offer.name_of, FIND_IT)
                # Answered as if it did not exist: a refusal by policy would reveal that it does.
                return error_to_dict(unknown.error)
            answer = answer._replace(error=self._in_mcp_words(call.tool, answer.error))
        result = await self._answer_within_limit(call, answer)
        approval = awaited_approval(answer.error)
        if approval is not None and approval.is_pending:
            self._add_how_to_approve(result, approval.approval_id)
        return result

    def _refuse_unwanted(self, call: Call, approval_id: str) -> dict[str, Any]:
        """Return the answer to a call whose user does not go on waiting for its approval."""
        message = (
            f"{self._offer.name_of(call.tool)}: the user does not wait for approval {approval_id}. Nothing has been "
            "done. If the user still wants it after the decision, make the same call again."
        )
        details: JsonObject = {"approval_id": approval_id, "declined": True}
        result = error_to_dict(ToolError(kind=ErrorKind.APPROVAL_REQUIRED, message=message, details=details))
        self._add_how_to_approve(result, approval_id)
        return result

    def _add_how_to_approve(self, result: dict[str, Any], approval_id: str) -> None:
        how = how_to_approve(approval_id, self._engine.approval_page(approval_id))
        result["content"].append({"type": "text", "text": f"{how}."})

    def _in_mcp_words(self, tool: str, error: ToolError) -> ToolError:
        """Return the error with the tool's listed name. A model must not add the approval's id to the arguments: over
        MCP the same call finds its approval."""
        message = error.message.replace(AGAIN, "make the same call again.")
        name = self._offer.name_of(tool)
        return structs.replace(error, message=re.sub(rf"(?<!\w){re.escape(tool)}(?!\w)", lambda _: name, message))

    async def _answer(self, context: Context, call: Call, answer: ToolResult) -> dict[str, Any]:
        if answer.job is not None and declares_tasks(context):
            return self.tasks.job_to_created(context, await self._engine.jobs.get(call.principal, answer.job.job_id))
        return await self.visible(call, answer)

    async def _waiting(
        self, context: Context, call: Call, answer: ToolResult, approval: Awaited, came_back: Answered | None
    ) -> dict[str, Any]:
        """Choose the next way for a call that waits for an approver, and was refused with `answer` until then."""
        assert answer.error is not None
        approval_id = approval.approval_id
        url = self._engine.approval_page(approval.approval_id)
        message = f"{self._in_mcp_words(call.tool, answer.error).message} {how_to_approve(approval_id, url)}."
        prompt = Prompt(approval_id, f"{message} When it has been approved, accept to go on.", url)
        if came_back is None and prompt.mode(context):
            if not context.session.can_send_request:
                return _input_required(prompt.request(context), f"{approval_id} {call.plan_digest}".rstrip())
            if await prompt.ask_user(context):
                answer = await self._invoke(context, self._again(call, approval_id))
        elif declares_tasks(context) and not self._may_be_asked(call) and (came_back is None or came_back.is_accepted):
            job = await self.submit(self._again(call, ""))
            if not job.state.is_final:
                # The job has asked anew, for an approval that only it can use: one question is enough.
                await self._engine.withdraw(approval_id, "", f"Job {job.job_id} waits for it now.")
                return self.tasks.job_to_created(context, job)
        return await self.visible(call, answer)

    def _login_wanted(self, error: ToolError | None) -> str:
        """Return the source at which the caller has to log in, or may, before the call can be made; else empty."""
        if error is None or error.kind not in (ErrorKind.PERMISSION_DENIED, ErrorKind.TOOL_UNAVAILABLE):
            return ""
        source = str(error.details.get("source", ""))
        if error.details.get("command") == f"{_CALLERS_LOGIN} {source}":
            return source
        # A tool whose source nobody could read has no credential to be asked for yet.
        reason = str(error.details.get("reason", ""))
        return next(
            (
                status.name
                for status in self._engine.sources()
                for command in status.login_commands
                if command.startswith(_CALLERS_LOGIN) and f"`{command}`" in reason
            ),
            "",
        )

    async def _logging_in(
        self, context: Context, call: Call, answer: ToolResult, source: str, came_back: Answered | None
    ) -> dict[str, Any]:
        """Ask the user to open the page of a login, and make the call again after it; `answer`: the refusal until
        then."""
        pages = self._engine.logins
        ticket = pages.ticket(call.principal, source) if pages is not None else None
        if pages is None or ticket is None:
            return await self._answer(context, call, answer)
        message = f"{source} wants you to log in with your own account there. Open the page, then accept to go on."
        prompt = Prompt(ticket.ticket_id, message, pages.url(ticket))
        if prompt.mode(context) != "url":
            return await self._answer(context, call, answer)
        if not context.session.can_send_request:
            return _input_required(prompt.request(context), f"{_LOGIN}{ticket.ticket_id}")
        if came_back is None and await prompt.ask_user(context):
            # Accepting may only mean that the page was opened.
            await pages.wait_for_login(ticket.ticket_id, call.principal, _LOGIN_S)
            return await self.make(context, self._again(call, ""), Answered("", is_accepted=True))
        return await self._answer(context, call, answer)

    def _lasts(self, tool: str) -> bool:
        """Like `offer.lasts`, without calls that become jobs by themselves."""
        spec = self._engine.catalog.get(tool)
        return spec is not None and lasts(spec) and not spec.cost.is_async

    def _may_be_asked(self, call: Call) -> bool:
        """Return whether the tool's server may ask the client of this call: a job has no client, so nobody could
        answer."""
        spec = self._engine.catalog.get(call.tool)
        if spec is None or call.client is None:
            return False
        return any(kind in call.client.capabilities for kind in self._engine.relays(spec.source))

    async def _made_as_job(self, context: Context, call: Call) -> dict[str, Any]:
        """Return the result if it is there soon, else a task.

        A client that leaves before it knows the task ends the job.
        """
        submitting = asyncio.create_task(self.submit(call))
        try:
            job = await asyncio.shield(submitting)
            # A call that waits for a person will not be over in two seconds.
            if job.state is not JobState.AWAITING_APPROVAL:
                job = await self._soon(job)
        except BaseException:
            # Shielded and suppressed: the client is gone, so no caller is left for an error.
            with anyio.CancelScope(shield=True), suppress(ToolFailure):
                job = await submitting  # the job is there, though nobody waits for it
                await self._engine.jobs.cancel(call.principal, job.job_id, "The client gave the call up.")
            raise
        result = job.status.result
        if result is None:
            return self.tasks.job_to_created(context, job)
        planned = await self.confirm_plan(context, call, result.error)
        if isinstance(planned, Call):
            return await self._made_as_job(context, planned)
        return planned or await self.visible(call, result)

    async def _soon(self, job: Job) -> Job:
        if job.state.is_final:
            return job
        with anyio.move_on_after(_PATIENCE_S):
            async with aclosing(self._engine.watch.watch(job, job.status.sequence)) as entries:
                async for _ in entries:
                    pass
        return await self._engine.jobs.get(job.call.principal, job.job_id)

    async def _answer_within_limit(self, call: Call, answer: ToolResult) -> dict[str, Any]:
        """Return the answer with at most so many bytes of text as models are shown at once, and a link to the whole."""
        spec = self._engine.catalog.get(call.tool)
        text_max_bytes = (spec.limits.mcp_text_max_bytes if spec is not None else 0) or self._engine.text_max_bytes
        content = content_of(answer)
        if not is_blocks(answer):
            answer = await self._fitting(call, answer, text_max_bytes)
        if content is None:
            return answer_of(answer)
        rest = ""
        if text_bytes_of(content) > text_max_bytes:
            kept = None
            if not answer.truncated:  # otherwise the whole is stored
                whole = await asyncio.to_thread(canonical_json.dumps, {"content": list(content)})
                kept = await self._kept_if_possible(call, whole)
            answer = answer._replace(truncated=True, artifacts=(*answer.artifacts, *([kept] if kept else [])))
            rest = f"; the whole is {ARTIFACT_URI}{kept.artifact_id}" if kept else ""
        taken = Taken(call.principal.id, self._engine.artifacts, text_max_bytes, rest)
        blocks = await taken.blocks(content)
        links = [resource_link(ref) for ref in answer.artifacts if ref.artifact_id not in taken.ids]
        result = answer_of(answer, [*blocks, *links], is_value_of_blocks=is_blocks(answer))
        if answer.error is not None and spec is not None and "structuredContent" in result:
            _keep_valid(result, spec)
        return result

    async def _fitting(self, call: Call, answer: ToolResult, max_bytes: int) -> ToolResult:
        """Return an answer whose value has at most so many bytes: a larger one is cut, and stored."""
        value = answer.value
        cut = None
        if answer.error is None and len(canonical_json.dumps(value)) > max_bytes:
            # In a thread: encoding and cutting megabytes of JSON would block every other call.
            value, cut = await asyncio.to_thread(cut_to, value, max_bytes)
        if cut is None:
            return answer
        # Otherwise the pipeline has stored the whole result.
        kept = None if answer.truncated else await self._kept_if_possible(call, cut.whole)
        artifacts = (*answer.artifacts, kept) if kept else answer.artifacts
        return answer._replace(value=value, artifacts=artifacts, truncated=True)

    async def _kept_if_possible(self, call: Call, value_json: bytes) -> ArtifactRef | None:
        """Return None where it cannot be stored: the answer is valid without it."""
        try:
            return await self._kept_whole(call, value_json)
        except ToolFailure:
            return None

    async def _kept_whole(self, call: Call, value_json: bytes) -> ArtifactRef:
        """Store it once for a job, however often it is requested."""
        known = self._wholes.get(call.job_id)
        if known is not None:
            return known
        artifact = await self._engine.artifacts.keep_whole(call, value_json)
        if call.job_id:
            self._wholes[call.job_id] = artifact
            if len(self._wholes) > _WHOLES_MAX:
                self._wholes.popitem(last=False)
        return artifact

    async def _invoke(self, context: Context, call: Call) -> ToolResult:
        if call.client is not None:
            return await self.relay.invoke(call, context)
        answer = await invoke(self._engine.invoker, call, context)
        assert isinstance(answer, ToolResult)  # no dry run was requested
        return answer

    def _again(self, call: Call, approval_id: str) -> Call:
        return call._replace(call_id=self._engine.call_ids.next(), approval_id=approval_id)


def _keep_valid(refused: dict[str, Any], spec: ToolSpec) -> None:
    """Move structured content of an error that the tool's schema does not describe beside the error: clients that
    validate it would show the model nothing."""
    if for_tool(spec).validate_output(refused["structuredContent"]):
        refused["_meta"][META_PREFIX + "error"]["details"]["structuredContent"] = refused.pop("structuredContent")


def _input_required(request: dict[str, Any], approval_id: str) -> dict[str, Any]:
    return {"resultType": "input_required", "inputRequests": {_INPUT: request}, "requestState": approval_id}
