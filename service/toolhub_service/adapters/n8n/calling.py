"""A workflow that answers with its result: one request, and a look-up where the answer is unclear.

A missing answer proves nothing, because n8n continues when its caller disconnects. The execution is looked up by the
key and followed while there is time, and determines the outcome. The last part of the call's time is reserved for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final

from toolhub_service.adapters.n8n import failures
from toolhub_service.adapters.n8n.answers import (
    STARTED,
    Read,
    Unreadable,
    execution_id_in,
    failure_in,
    plain_media_type,
    read_in_thread,
)
from toolhub_service.adapters.n8n.api import ApiError, Found, N8nApi, NotFound
from toolhub_service.adapters.n8n.client import NoReply
from toolhub_service.adapters.n8n.execution import (
    AnswerNotKept,
    Execution,
    NoData,
    answer_of,
    result_items,
    result_of,
)
from toolhub_service.adapters.n8n.result_files import ItemFile, files_in, keep_files
from toolhub_service.adapters.n8n.server import (
    N8nServer,
    Sent,
    facts,
    facts_of_found,
    key_of,
    run_evidence,
    send,
)
from toolhub_service.adapters.n8n.workflow import Webhook, Workflow
from toolhub_service.adapters.upstream import keep_bytes, keep_json
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import Outcome
from toolhub_service.egress.json_bodies import is_large
from toolhub_service.guards.secrets import Redact
from toolhub_service.schema.repaired_json import repair_evidence

RAW_MAX_BYTES: Final = 64 * 1024
RESERVE_S: Final = 5.0
"""Part of a call's time for looking up how it ended; at most a quarter of it."""
STOP_TIMEOUT_S: Final = 2.0
"""For finding and stopping an execution whose caller has given up."""
LOOKUP_TIMEOUT_S: Final = 3.0
"""How long an ended execution is looked for: a list may miss it for a moment."""
_PAUSE_S: Final = 0.2
_NO_API: Final = "It could not be looked up, because the source has no `api_key`."
_NOT_FOUND: Final = "Its execution was not found by its key; it may have run all the same."


class WorkflowCaller:
    """Calls workflows of any server."""

    def __init__(
        self,
        redact: Redact,
        clock: Clock,
        *,
        artifacts: ArtifactService | None = None,
        keep_raw: bool = False,
        pause_s: float = _PAUSE_S,
        lookup_timeout_s: float = LOOKUP_TIMEOUT_S,
    ) -> None:
        """`artifacts`: stores binary answers; `keep_raw`: whether outcomes contain n8n's own answer (bounded).

        `pause_s`: between two requests about one execution; `lookup_timeout_s`: how long one is looked for.
        """
        self.redact = redact
        self.clock = clock
        self._artifacts = artifacts
        self._keep_raw = keep_raw
        self.pause_s = pause_s
        self.lookup_timeout_s = lookup_timeout_s

    async def run(self, server: N8nServer, workflow: Workflow, call: GrantedCall) -> Outcome:
        """Run one call. Raises ToolFailure; when cancelled, it has n8n stop the executions that it can find."""
        run = _Run(self, server, workflow, call)
        try:
            return await run.outcome()
        except asyncio.CancelledError:
            # n8n continues a workflow whose caller has disconnected.
            await run.stop()
            raise

    async def outcome(
        self,
        server: N8nServer,
        workflow: Workflow | None,
        call: GrantedCall,
        execution: Execution,
        known: dict[str, str],
    ) -> Outcome:
        """Return the outcome of an execution that has ended. Raises ToolFailure when it failed, NoData."""
        failures.check_end(call, execution, self.redact, known)
        value, found = _result_and_files(workflow, call, execution)
        # Masked first: a workflow may return the secrets that it was called with.
        value = server.terms.mask.value(value)
        self._check_result(workflow, call, value, known)
        files = await keep_files(found, call.call, self._artifacts, self.redact, execution.id)
        return Outcome(
            files.merge_files(value),
            (run_evidence(call, known, "ran in n8n"), *files.evidence),
            files.artifacts,
            truncated=bool(files.missing),
            raw=keep_json(value, RAW_MAX_BYTES) if self._keep_raw else None,
        )

    async def outcome_of_answer(
        self,
        server: N8nServer,
        workflow: Workflow,
        call: GrantedCall,
        sent: Sent,
        value: Read,
        known: dict[str, str],
    ) -> Outcome:
        """Return the outcome of a successful answer. Raises ToolFailure."""
        if server.terms.mask.finds(sent.answer.body):
            value = value._replace(value=server.terms.mask.value(value.value))
        if value.binary is not None:
            media_type = plain_media_type(sent.answer.headers.get("content-type", ""))
            held, refs = await keep_bytes(value.binary, call.call, self._artifacts, media_type=media_type)
            proof = run_evidence(call, known, "answered with a file")
            return Outcome(held, (proof,), refs, truncated=not refs)
        self._check_result(workflow, call, value.value, known)
        if value.value == STARTED or (value.value is None and sent.webhook.response_mode == "onReceived"):
            proof = run_evidence(call, known, "was only started: its outcome is not known here", started_only="true")
        else:
            proof = run_evidence(call, known, "answered")
        raw = keep_json(value.value, RAW_MAX_BYTES) if self._keep_raw else None
        proofs = (proof, *repair_evidence(proof.ref, value.repairs))
        return Outcome(value.value, proofs, raw=raw, is_large=is_large(sent.answer.body))

    def _check_result(
        self, workflow: Workflow | None, call: GrantedCall, value: JsonValue, known: dict[str, str]
    ) -> None:
        words = failure_in(workflow.entry, value) if workflow is not None else None
        if words is not None:
            raise failures.result_is_failure(call, words, self.redact, known)


def _result_and_files(
    workflow: Workflow | None, call: GrantedCall, execution: Execution
) -> tuple[JsonValue, Sequence[ItemFile]]:
    """Return the execution's result and its files. Raises NoData."""
    try:
        value = result_of(execution) if call.spec.cost.is_async else answer_of(execution)
        return value, files_in(result_items(execution))
    except AnswerNotKept:
        if workflow is not None and not workflow.entry.is_async:
            raise
        return None, ()  # its answer was the execution's id


class _Run:
    """One call of one workflow."""

    def __init__(self, by: WorkflowCaller, server: N8nServer, workflow: Workflow, call: GrantedCall) -> None:
        self._by = by
        self._server = server
        self._workflow = workflow
        self._call = call
        self._key = key_of(call)
        self._sent_at_unix_ms = by.clock.unix_ms()
        self._began_s = self._now_s()
        self._webhook: Webhook | None = workflow.webhook
        self._execution_id = ""
        self._has_ended = False

    async def outcome(self) -> Outcome:
        call = self._call
        try:
            sent = await send(self._server, self._workflow, call, self._key, deadline_s=self._answer_deadline_s())
        except NoReply as broken:
            if not broken.was_sent:
                self._has_ended = True
                raise failures.not_sent(call, broken.reason) from None
            return await self._outcome_by_lookup(broken.reason)
        except ToolFailure:
            self._has_ended = True
            raise
        self._webhook = sent.webhook
        return await self._outcome_of_sent(sent)

    async def stop(self) -> None:
        """Ask n8n once to stop it, for a bounded time and in a separate task, because this one is being cancelled."""
        if self._has_ended or self._server.api is None:
            return
        asking = asyncio.create_task(self._stop_once(self._server.api))
        await asyncio.wait({asking}, timeout=STOP_TIMEOUT_S)
        # A caller that gave up does not wait for a hanging n8n.
        asking.cancel()

    async def _stop_once(self, api: N8nApi) -> None:
        try:
            execution_id = self._execution_id
            if not execution_id:
                found = await api.find(self._workflow_id, self._key, self._sent_at_unix_ms)
                execution_id = found.execution.id if found and not found.execution.is_over else ""
            if execution_id:
                await api.stop(execution_id)
        except (ApiError, NotFound):
            return  # it runs to its end, as it does without an API

    async def _outcome_of_sent(self, sent: Sent) -> Outcome:
        answer, call = sent.answer, self._call
        if failures.is_unknown(answer):
            return await self._outcome_by_lookup(failures.gave_up(answer))
        if answer.is_cut:
            raise failures.too_large(call, self._server.terms.entry.max_response_bytes, self._facts())
        # `Error in workflow` names neither the cause nor the execution.
        if failures.is_in_workflow(answer):
            raise await self._workflow_failure()
        # The answer of a workflow that already knows the key, as in the recipe of docs/n8n.md.
        if answer.status == 409 and self._workflow.entry.deduplicates:
            return await self._first_outcome(sent)
        if not 200 <= answer.status < 300:
            raise failures.answer_failure(call, answer, self._by.redact)
        self._has_ended = True
        try:
            value = await read_in_thread(answer)
        except Unreadable as unreadable:
            raise failures.unreadable(call, unreadable.why) from None
        self._execution_id = execution_id_in(answer, value.value, self._workflow.entry.execution_id)
        # n8n answers 200 with an empty body when a workflow fails before its Respond node (n8n #21827, #25340).
        if not answer.body.strip() and not sent.webhook.answers_nothing:
            return await self._outcome_of_empty(sent)
        took_ms = round((self._now_s() - self._began_s) * 1_000)
        known = self._facts() | {"http_status": str(answer.status), "duration_ms": str(took_ms)}
        return await self._by.outcome_of_answer(self._server, self._workflow, call, sent, value, known)

    async def _outcome_of_empty(self, sent: Sent) -> Outcome:
        """Return the outcome of a success without a body, which only its execution explains."""
        found, search = await self._find_execution()
        if found is None:
            raise failures.empty_answer(self._call, search, self._facts())
        known = facts_of_found(self._server, self._webhook, found)
        failures.check_end(self._call, found.execution, self._by.redact, known, status=sent.answer.status)
        if found.execution.status == "success" or found.execution.status in ("running", "waiting"):
            is_only_started = found.execution.status != "success"
            more = {"started_only": "true"} if is_only_started else {}
            proof = run_evidence(self._call, known, "answered nothing; its execution was looked up", **more)
            return Outcome(None, (proof,))
        raise failures.empty_answer(self._call, search, known)

    async def _workflow_failure(self) -> ToolFailure:
        """Return why the workflow failed, according to its execution."""
        found, search = await self._find_execution()
        if found is None or not found.execution.has_failed:
            return failures.in_workflow(self._call, search if self._server.api else "")
        known = facts_of_found(self._server, self._webhook, found)
        return failures.execution_failure(self._call, found.execution, self._by.redact, known, status=500)

    async def _first_outcome(self, sent: Sent) -> Outcome:
        """Return the outcome of the first run with this key, which the workflow already knew."""
        found, _ = await self._find_execution()
        # A single execution is the one that answered 409: the result of this key is unknown.
        if found is None or not found.others:
            raise failures.answer_failure(self._call, sent.answer, self._by.redact)
        return await self._wait_for_end(found, "It had been sent before under the same key.")

    async def _outcome_by_lookup(self, happened: str) -> Outcome:
        """Return the outcome of a request without an answer. Raises ToolFailure OUTCOME_UNKNOWN when no execution
        explains it."""
        found, search = await self._find_execution()
        if found is None:
            self._has_ended = True
            raise failures.unknown(self._call, happened, search, self._facts())
        return await self._wait_for_end(found, happened)

    async def _wait_for_end(self, found: Found, happened: str) -> Outcome:
        """Follow an execution to its end, while there is time."""
        api = self._server.api
        assert api is not None  # otherwise nothing was found
        self._execution_id = found.execution.id
        execution = found.execution
        search = "Its execution was found and is still running."
        try:
            while not execution.is_over and self._remaining_s() > self._stop_reserve_s():
                await asyncio.sleep(self._by.pause_s)
                # Its data may be megabytes, and here only its status matters.
                execution = await api.execution(execution.id, with_data=False, timeout_s=self._remaining_s())
            if execution.is_over:
                execution = await api.execution(execution.id, with_data=True, timeout_s=self._remaining_s())
        except (ApiError, NotFound):
            search = "Its execution was found, but could not be followed to its end."
        known = facts_of_found(self._server, self._webhook, found._replace(execution=execution))
        if execution.is_over:
            self._has_ended = True
            try:
                return await self._by.outcome(self._server, self._workflow, self._call, execution, known)
            except NoData:
                search = f"Its execution ended with {execution.status}, and n8n did not save its result."
        else:
            await self.stop()
            self._has_ended = True
        raise failures.unknown(self._call, happened, search, known)

    async def _find_execution(self) -> tuple[Found | None, str]:
        """Return its execution, or None and a sentence about why it was not found."""
        api = self._server.api
        if api is None:
            return None, _NO_API
        until_s = min(
            self._now_s() + self._by.lookup_timeout_s, self._now_s() + self._remaining_s() - self._stop_reserve_s()
        )
        try:
            # At least one request, however little time is left.
            async with asyncio.timeout_at(max(until_s, self._now_s() + 0.05)):
                while True:
                    found = await api.find(self._workflow_id, self._key, self._sent_at_unix_ms)
                    if found is not None:
                        return found, ""
                    await asyncio.sleep(self._by.pause_s)
        except ApiError as error:
            return None, f"It could not be looked up. {error.reason}"
        except TimeoutError:
            return None, _NOT_FOUND

    @property
    def _workflow_id(self) -> str:
        return replace(self._workflow, webhook=self._webhook).workflow_id

    def _facts(self) -> dict[str, str]:
        return facts(self._server, self._webhook, None, self._execution_id)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _remaining_s(self) -> float:
        return inf if self._call.deadline_s == inf else self._call.deadline_s - self._now_s()

    def _answer_deadline_s(self) -> float:
        """Return the deadline for the answer, which leaves time to look the execution up."""
        deadline_s = self._call.deadline_s
        if deadline_s == inf:
            return inf
        # Time to look the execution up, where that is possible; at most a quarter of a short deadline.
        reserve_s = RESERVE_S if self._server.api is not None else 0.1
        return deadline_s - min(reserve_s, self._remaining_s() / 4)

    def _stop_reserve_s(self) -> float:
        """Return the time reserved for giving up and requesting a stop."""
        return min(0.5, self._remaining_s() / 10) if self._remaining_s() != inf else 0.0
