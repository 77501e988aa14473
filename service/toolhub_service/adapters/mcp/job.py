"""Tasks of MCP servers as remote jobs: work that a server goes on with after it has answered `tools/call`.

    2025-11-25   the call asks for a task (`task: {ttl}`); tools say whether they can (`execution.taskSupport`).
                 tasks/get until it is over, tasks/result for what it brought.
    2026-07-28   the extension `io.modelcontextprotocol/tasks` (SEP-2663): the call declares that it can take a task,
                 and the server decides; tasks/get has the result, too. What is answered at once is no task.

Neither version lets a client name a task before it exists: a start whose answer is lost cannot be looked up. It is sent
again only where a repeat is safe, else the job is LOST. A task that waits for input gets it
(`questions/task_questions.py`), or is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from mcp import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, encode_header_value
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, REQUEST_TIMEOUT
from msgspec.structs import replace

from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.calling import ToolCaller
from toolhub_service.adapters.mcp.link import McpServer, McpSession
from toolhub_service.adapters.mcp.progress import MESSAGE_MAX_CHARS, Reporter
from toolhub_service.adapters.mcp.questions.task_questions import STATUS, TaskQuestions
from toolhub_service.adapters.remote import RemoteTerms
from toolhub_service.adapters.remote_polling import Answer, Poller, PollTerms, Unreachable
from toolhub_service.adapters.upstream import as_number, as_object, as_string, one_line
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, RemoteUnclear, ToolFailure, refuse
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Clock
from toolhub_service.domain.result import Outcome, Progress

EXTENSION: Final = "io.modelcontextprotocol/tasks"
POLLS: Final = PollTerms(first_s=0.05, longest_s=5.0)  # besides what the server asks for (`pollInterval`)
# There is nothing to look up, so no time is spent on it.
TERMS: Final = RemoteTerms(look_up_timeout_s=0.0, lookups_min=1, absent_for_s=0.0)

ID_MAX_CHARS: Final = 512
# How long past its deadline a server is asked to keep a result, so that another run can still collect it.
KEEP_S: Final = 3_600.0
KEEP_MAX_S: Final = 86_400.0
_REQUEST_S: Final = 30.0
_QUESTION_S: Final = 2.0  # for a server of 2025-11-25 to ask and get its answer, once it may
_ANSWERS_MAX: Final = 1_000
_OVER: Final = frozenset({"completed", "failed", "cancelled"})
# How servers report an unknown task; -32002 is "resource not found" before 2026-07-28.
_FORGOTTEN: Final = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND, -32002})


def has_extension(session: McpSession) -> bool:
    """Return whether the server may answer a call with a task (2026-07-28)."""
    return session.is_modern and EXTENSION in session.extensions


class McpTasks:
    """Implements `RemoteJob` over the tasks of one server."""

    def __init__(self, server: McpServer, calling: ToolCaller, poller: Poller, clock: Clock) -> None:
        self._server = server
        self._caller = calling
        self._poller = poller
        self._clock = clock
        self._answers: dict[str, tuple[JsonObject, McpSession]] = {}
        self._wanted_input: set[str] = set()
        self.reporters: dict[str, Reporter] = {}  # by job: receives the progress of a call that is answered at once

    async def start(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark:
        reporter = self.reporters.get(call.call.job_id)
        try:
            answer, session = await self._caller.result(
                self._server, call, reporter, task_ttl_ms=self._ttl_ms(call), extension=EXTENSION, key=mark.key
            )
        except ToolFailure as failure:
            # The task may exist on the server, under an id that the hub never saw.
            if _is_unclear(failure):
                raise RemoteUnclear(failure.error.message) from failure
            raise
        task = _task_in(answer)
        if task is None:
            # The server may answer at once instead of making a task; `collect` takes the answer from here.
            self._keep_answer(mark.key, (answer, session))
            return replace(mark, accepted=True)
        return replace(mark, remote_id=str(task["taskId"]), accepted=True)

    async def find(self, call: GrantedCall, mark: RemoteMark) -> RemoteMark | None:
        if call.safe_to_repeat:
            return None
        raise RemoteUnclear("The response of the server, which names the task, was lost.")

    async def follow(self, call: GrantedCall, mark: RemoteMark) -> AsyncIterator[Progress]:
        if not mark.remote_id:
            return
        wanted = TaskQuestions(call, self._server.elicitation, self._caller.redact)
        # The server's questions meanwhile may belong to the task, which has no client, so no other call's client
        # answers them.
        with self._server.link.running.enter(None, call.call.principal.id):
            async for progress in self._poller.poll(lambda: self._poll_task(call, mark, wanted), key=mark.remote_id):
                yield progress

    async def cancel(self, call: GrantedCall, mark: RemoteMark) -> bool:
        if not mark.remote_id:
            return False
        try:
            await self._ask(call, mark, "tasks/cancel")
        except Unreachable as silent:
            raise RemoteUnclear("The server could not be asked to cancel its task.") from silent
        except MCPError as error:
            if error.error.code == METHOD_NOT_FOUND:
                return False
        self._poller.poll_now(mark.remote_id)
        return True

    async def collect(self, call: GrantedCall, mark: RemoteMark) -> Outcome:
        if not mark.remote_id:
            return await self._collect_at_once(call, mark)
        task, session = await self._poller.answer(lambda: self._task(call, mark))
        status = task.get("status")
        if mark.remote_id in self._wanted_input:
            self._wanted_input.discard(mark.remote_id)
            raise failures.cannot_be_asked(
                call, "its server's task requested input that the hub does not provide, and was cancelled"
            )
        if status == "cancelled":
            raise refuse(ErrorKind.CANCELLED, f"{call.spec.name} was cancelled on its server.")
        result = as_object(task.get("result"))
        if result is None and session.is_modern:
            error = as_object(task.get("error")) or {}
            raise failures.reported_failure(call, str(error.get("message", "")), self._caller.redact)
        if result is not None:
            return await self._caller.outcome(self._server, session, call, result)
        payload, session = await self._poller.answer(lambda: self._payload(call, mark))
        return await self._caller.outcome(self._server, session, call, payload)

    async def _collect_at_once(self, call: GrantedCall, mark: RemoteMark) -> Outcome:
        """Return the outcome of a call that was answered without a task; the answer is only in this process."""
        held = self._answers.pop(mark.key, None)
        if held is None:
            if not call.safe_to_repeat:
                raise RemoteUnclear(
                    "The server answered at once, but the hub process died before it stored the answer."
                )
            held = await self._caller.result(self._server, call, self.reporters.get(call.call.job_id))
        answer, session = held
        return await self._caller.outcome(self._server, session, call, answer)

    async def _poll_task(self, call: GrantedCall, mark: RemoteMark, wanted: TaskQuestions) -> Answer[Progress]:
        """Return the progress of a task. Raises Unreachable, RemoteUnclear, QuestionAsked."""
        task, session = (await self._task(call, mark)).value
        status = str(task.get("status"))
        if status == STATUS and not await self._give_input(call, mark, task, session, wanted):
            self._wanted_input.add(mark.remote_id)
            await self.cancel(call, mark)
        words = one_line(as_string(task.get("statusMessage")), MESSAGE_MAX_CHARS)
        message = f"{status.replace('_', ' ')}{f': {words}' if words else ''}"
        is_over = status in _OVER
        return Answer(
            Progress(step=float(is_over), total=1.0, unit="task", message=excerpt(message, MESSAGE_MAX_CHARS)),
            is_over=is_over,
            retry_after_s=_poll_interval_s(task),
        )

    async def _give_input(
        self, call: GrantedCall, mark: RemoteMark, task: JsonObject, session: McpSession, wanted: TaskQuestions
    ) -> bool:
        """Give a task the input that it requests. Return whether it has the input or will get it. Raises Unreachable,
        QuestionAsked."""
        if not session.is_modern:
            return wanted.may_be_asked() and await self._open_question_stream(call, mark)
        answers = wanted.answers_for(task)
        if answers:
            try:
                await self._ask(call, mark, "tasks/update", inputResponses=answers)
            except MCPError:
                return False
            wanted.note_answers(answers)
            # The task continues at once after its answers, while the next poll may be seconds away.
            self._poller.poll_now(mark.remote_id)
        return answers is not None

    async def _open_question_stream(self, call: GrantedCall, mark: RemoteMark) -> bool:
        """Open the stream on which the server asks; it ends with the task, whose end is not awaited there."""
        try:
            await self._ask(call, mark, "tasks/result", timeout_s=_QUESTION_S)
        except Unreachable:
            return True
        except MCPError as error:
            return error.error.code not in _FORGOTTEN
        return True

    async def _task(self, call: GrantedCall, mark: RemoteMark) -> Answer[tuple[JsonObject, McpSession]]:
        try:
            answer, session = await self._ask(call, mark, "tasks/get")
        except MCPError as error:
            raise _task_error(error) from error
        task = _task_in(answer)
        # A server that confuses tasks must not give one caller's result to another.
        if task is None or task["taskId"] != mark.remote_id:
            raise RemoteUnclear("The server sent an invalid task status.")
        return Answer((task, session), is_over=True)

    async def _payload(self, call: GrantedCall, mark: RemoteMark) -> Answer[tuple[JsonObject, McpSession]]:
        """Return the result of a task of 2025-11-25. Raises ToolFailure when it is a protocol error."""
        try:
            return Answer(await self._ask(call, mark, "tasks/result"), is_over=True)
        except MCPError as error:
            if error.error.code in _FORGOTTEN:
                raise _task_error(error) from error
            raise failures.protocol_failure(call, error, self._caller.redact) from error

    async def _ask(
        self, call: GrantedCall, mark: RemoteMark, method: str, *, timeout_s: float = _REQUEST_S, **more: JsonValue
    ) -> tuple[JsonObject, McpSession]:
        """Send one request about a task. Raises Unreachable, and MCPError for the server's own errors."""
        try:
            session = await self._server.link.session(asyncio.get_running_loop().time() + _REQUEST_S)
        except ToolFailure as failure:
            raise Unreachable(failure.error.retry_after_s or 0.0) from failure
        headers = {MCP_NAME_HEADER: encode_header_value(mark.remote_id)} if session.is_modern else None
        params: dict[str, Any] = {"taskId": mark.remote_id, **more}
        try:
            answer = await self._server.link.send(
                session, method, params, timeout_s=timeout_s, headers=headers, extension=EXTENSION
            )
        except MCPError as error:
            is_silent = failures.breakage_in(error) or error.error.code == REQUEST_TIMEOUT
            if is_silent or failures.is_lost_session(error):
                raise Unreachable from error
            raise
        return answer, session

    def _ttl_ms(self, call: GrantedCall) -> int:
        left_s = call.deadline_s - self._clock.monotonic_s()
        return int(1_000 * min(max(left_s, 0.0) + KEEP_S, KEEP_MAX_S))

    def _keep_answer(self, key: str, answer: tuple[JsonObject, McpSession]) -> None:
        # Answers of runs that were cut off between `start` and `collect`; nobody collects them.
        if len(self._answers) >= _ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = answer


def _is_unclear(failure: ToolFailure) -> bool:
    """Return whether a start may have been taken: no answer in time, or a connection that broke during it."""
    error = failure.error
    if error.kind is ErrorKind.UPSTREAM_ERROR:
        return error.upstream is None and error.is_retryable
    return error.kind in (ErrorKind.OUTCOME_UNKNOWN, ErrorKind.TIMEOUT)


def _task_error(error: MCPError) -> Exception:
    """Return what an error about a task means: the task is unknown, or the server has a problem and may be
    asked again."""
    if error.error.code in _FORGOTTEN:
        return RemoteUnclear("The server no longer knows the task.")
    return Unreachable()


def _task_in(answer: JsonObject) -> JsonObject | None:
    """Return the task in an answer; None when there is none."""
    task = as_object(answer.get("task")) or answer
    name = task.get("taskId")
    return task if isinstance(name, str) and 0 < len(name) <= ID_MAX_CHARS and "status" in task else None


def _poll_interval_s(task: JsonObject) -> float:
    """Return the interval in seconds; the extension renamed `pollInterval` to `pollIntervalMs`."""
    given_ms = as_number(task.get("pollIntervalMs", task.get("pollInterval"))) or 0.0
    return max(0.0, given_ms / 1_000)
