"""A request as a Call: the envelope is valid by now, the arguments are still untrusted."""

from __future__ import annotations

from functools import partial
from typing import Literal, Protocol

from toolhub.v1 import call_pb2
from toolhub_service.domain.call import BudgetRequest, Call, ExecContext, Mode, Principal
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.schema import strict_json
from toolhub_service.schema.strict_json import has_little
from toolhub_service.transport.convert.payload import from_struct, seconds


class Submits(Protocol):
    """What every request with a call in it has."""

    @property
    def intent(self) -> call_pb2.ToolIntent: ...
    @property
    def context(self) -> call_pb2.ExecContext: ...
    @property
    def plan_digest(self) -> str: ...
    @property
    def approval_id(self) -> str: ...
    @property
    def result_encoding(self) -> int: ...
    def HasField(self, field_name: Literal["context"], /) -> bool: ...  # noqa: N802 - protobuf's name


AT_ONCE_BYTES = 32 * 1024
"""Of JSON that is read at once, whatever it holds."""
_LIGHT_BYTES = 1024 * 1024
"""Of JSON that is read at once where it holds few values."""
_STRUCT_AT_ONCE_BYTES = 16 * 1024

_AS_TEXT = (
    "The arguments came as a string that holds the text of an object. Send the object itself, without quotes around it."
)


MODES = {
    call_pb2.INVOKE_MODE_UNSPECIFIED: Mode.EXECUTE,
    call_pb2.INVOKE_MODE_EXECUTE: Mode.EXECUTE,
    call_pb2.INVOKE_MODE_DRY_RUN: Mode.DRY_RUN,
}


def to_submitted_call(request: Submits, principal: Principal, *, call_id: str) -> Call:
    """Of a job: the deadline is its budget's, not the RPC's. As `to_call` otherwise."""
    return to_call(request, principal, call_id=call_id, deadline_s=None, mode=Mode.SUBMIT)


def to_call(request: Submits, principal: Principal, *, call_id: str, deadline_s: float | None, mode: Mode) -> Call:
    """Never raises for bad arguments: the call carries the error to step 2, so that it is answered and recorded."""
    intent = request.intent
    raw = intent.args_json
    args: JsonObject = {}
    args_error, unread_bytes = None, 0
    is_struct = not raw and intent.HasField("args_struct")
    if raw and len(raw) <= AT_ONCE_BYTES:
        try:
            value = strict_json.loads(raw)
        except ToolFailure as failure:
            args_error = failure.error
        else:
            args, args_error = (value, None) if type(value) is dict else _object(value)
    elif raw or is_struct:
        unread_bytes = _large_bytes(intent)
        if not unread_bytes:
            args, args_error = _read_args(intent)
    return Call(
        call_id=call_id,
        tool=intent.tool,
        args=args,
        args_error=args_error,
        principal=principal,
        context=_to_context(request.context, call_id) if request.HasField("context") else ExecContext(call_id),
        purpose=intent.purpose,
        idempotency_key=intent.idempotency_key,
        mode=mode,
        plan_digest=request.plan_digest,
        approval_id=request.approval_id,
        # One search of the bytes, which every call pays. A `$` may be spelt as an escape.
        names_artifacts=is_struct or b"$artifact" in raw or b"\\u0024" in raw,
        deadline_s=deadline_s,
        unread=partial(_read_large_args, intent) if unread_bytes else None,
        unread_bytes=unread_bytes,
    )


def wants_struct(request: Submits) -> bool:
    """Whether the answer's JSON travels as a Struct: as asked, else as the question did."""
    if request.result_encoding == call_pb2.RESULT_ENCODING_UNSPECIFIED:
        return request.intent.HasField("args_struct")
    return bool(request.result_encoding == call_pb2.RESULT_ENCODING_STRUCT)


def _large_bytes(intent: call_pb2.ToolIntent) -> int:
    """How many bytes the arguments have where they are too much to be read on the event loop; else 0."""
    raw = intent.args_json
    if raw:
        return 0 if len(raw) <= _LIGHT_BYTES and has_little(raw) else len(raw)
    size_bytes: int = intent.args_struct.ByteSize()
    return size_bytes if size_bytes > _STRUCT_AT_ONCE_BYTES else 0


def _read_args(intent: call_pb2.ToolIntent) -> tuple[JsonObject, ToolError | None]:
    try:
        if intent.HasField("args_struct"):
            value = strict_json.struct_numbers(from_struct(intent.args_struct))
        else:
            value = strict_json.loads(intent.args_json) if intent.args_json else {}
    except ToolFailure as failure:
        return {}, failure.error
    return _object(value)


def _read_large_args(intent: call_pb2.ToolIntent) -> tuple[JsonObject, ToolError | None]:
    """The same in a thread, the structure of the text counted first."""
    if intent.HasField("args_struct"):
        return _read_args(intent)
    try:
        return _object(strict_json.loads_bounded(intent.args_json))
    except ToolFailure as failure:
        return {}, failure.error


def _object(value: JsonValue) -> tuple[JsonObject, ToolError | None]:
    if isinstance(value, dict):
        return value, None
    is_text = isinstance(value, str) and value.lstrip().startswith("{")
    return {}, ToolError(
        kind=ErrorKind.INVALID_INPUT,
        message=_AS_TEXT if is_text else "The arguments must be a JSON object: put them into {…} with a name for each.",
        details={"got": type(value).__name__},
    )


def _to_context(context: call_pb2.ExecContext, call_id: str) -> ExecContext:
    """A call without a request_id is a request of its own."""
    return ExecContext(
        request_id=context.request_id or call_id,
        task_id=context.task_id,
        session_id=context.session_id,
        agent_id=context.agent_id,
        user_id=context.user_id,
        permissions=frozenset(context.permissions) if context.permissions else None,
        budget=_to_budget(context.budget) if context.HasField("budget") else BudgetRequest(),
        labels=dict(context.labels),
    )


def _to_budget(budget: call_pb2.CallBudget) -> BudgetRequest:
    return BudgetRequest(
        timeout_s=seconds(budget.timeout) if budget.HasField("timeout") else None,
        max_retries=budget.max_retries if budget.HasField("max_retries") else None,
        max_tool_calls=budget.max_tool_calls if budget.HasField("max_tool_calls") else None,
    )
