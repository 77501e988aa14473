"""Calls that cannot break the contract, told by a handful of comparisons.

Most calls name a tool, bring JSON and perhaps a few ids. That those keep every rule of `call.proto` is seen here in two
microseconds. protovalidate, which copies the message and walks all rules, takes five times as long, and is asked about
the rest: False means nothing but that. Tests hold each bound against protovalidate, and fail when the messages get a
field or a rule that nobody looks at here.
"""

from __future__ import annotations

import re
from typing import Final

from toolhub.v1 import call_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.transport.convert.call import AsksForCall

CALLS_MAX: Final = 256
_TOOL_MAX: Final = 256
_ARGS_MAX_BYTES: Final = 4 * 1024 * 1024
_PURPOSE_MAX: Final = 1_024
"""Characters, of at most four bytes each: the contract allows 4,096 bytes."""
_MODES: Final = frozenset(call_pb2.InvokeMode.values())
_ENCODINGS: Final = frozenset(call_pb2.ResultEncoding.values())
_ID: Final = "[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}"
_CALL_ID: Final = re.compile(_ID)
_FIVE_IDS: Final = re.compile(rf"(?:{_ID})?(?:\n(?:{_ID})?){{4}}")
"""Each an id or empty; none holds a line break, or there would be more lines than five."""


def is_plain(request: AsksForCall) -> bool:
    """Whether the call keeps every rule; False: it must be looked at in full. Of a session's call, but for its id."""
    intent = request.intent
    return (
        0 < len(intent.tool) <= _TOOL_MAX
        and len(intent.args_json) <= _ARGS_MAX_BYTES
        and len(intent.purpose) <= _PURPOSE_MAX
        and not (intent.idempotency_key or request.plan_digest or request.approval_id)
        and request.mode in _MODES
        and request.result_encoding in _ENCODINGS
        and (not request.HasField("context") or _is_plain_context(request.context))
    )


def are_plain(message: pb.InvokeSessionRequest) -> bool:
    """The same of all calls of a session's message, their ids included."""
    calls = message.calls
    if message.cancel_call_ids or len(calls) > CALLS_MAX:
        return False
    return all(is_plain(call) and _CALL_ID.fullmatch(call.call_id) for call in calls)


def _is_plain_context(context: call_pb2.ExecContext) -> bool:
    if context.permissions or context.labels or context.HasField("budget"):
        return False
    ids = f"{context.request_id}\n{context.task_id}\n{context.session_id}\n{context.agent_id}\n{context.user_id}"
    return _FIVE_IDS.fullmatch(ids) is not None
