"""What is said of work on a remote side: to its mark, to the one who follows it, and when nobody can tell its end."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Final

from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import NOTHING_HAPPENED, ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.result import Evidence, EvidenceType

_KEYS: Final = uuid.UUID("5f0c1d52-6c0e-4a57-9b8e-4d1f3a1c7e10")
_ATTACHED: Final = "attached"
_SENT_AT: Final = "sent_at_unix_ms"
_REFUSED: Final = "refused"
_STOP_AT: Final = "stop_asked_at_unix_ms"

WILL_STOP: Final = "asked the remote side to stop; waiting until it confirms"
CANNOT_STOP: Final = "the remote side cannot stop it; it goes on to its end"
WILL_NOT_STOP: Final = "it goes on to its end, for the remote side refuses to stop it"
LEFT_BEHIND: Final = "its time is up, and the remote side could not be asked to stop"
STOPPED_LATE: Final = "its time is up; the remote side was asked to stop"


class Doubt(Enum):
    """At which point nobody could tell any more. The value is the `cause` in the error's details."""

    START = "START_UNCLEAR"
    END = "END_UNCLEAR"
    RESULT = "RESULT_UNCLEAR"


_HOW: Final[Mapping[Doubt, str]] = {
    Doubt.START: "was sent, and nobody can tell whether it was taken",
    Doubt.END: "was taken and may have run, or may still run, but nobody can tell how it ended",
    Doubt.RESULT: "was taken and has ended, but what it brought cannot be had",
}


def new_mark(job_id: str) -> RemoteMark:
    """A mark to be kept before anything is sent.

    The key is a UUID (lower case, as remote sides want ids) made from the job's id: two processes that both take the
    job for theirs send the same one, so that a remote side that knows its keys runs it once.
    """
    return RemoteMark(key=str(uuid.uuid5(_KEYS, job_id)))


def sent(mark: RemoteMark, at_unix_ms: int) -> RemoteMark:
    """A mark whose start is about to be sent."""
    details = {name: value for name, value in mark.details.items() if name != _REFUSED}
    return mark._replace(details={**details, _SENT_AT: str(at_unix_ms)})


def refused(mark: RemoteMark) -> RemoteMark:
    """A mark whose start was refused: nothing runs, and there is nothing to look up."""
    return mark._replace(details={**mark.details, _REFUSED: "true"})


def may_run(mark: RemoteMark) -> bool:
    """Whether the remote side has it, or may have: a start was sent and not refused."""
    return mark.accepted or (_SENT_AT in mark.details and _REFUSED not in mark.details)


def asked_to_stop(mark: RemoteMark, at_unix_ms: int) -> RemoteMark:
    """The mark of work that is about to be asked to stop."""
    return mark._replace(details={**mark.details, _STOP_AT: str(at_unix_ms)})


def attached(mark: RemoteMark, accepted: RemoteMark) -> RemoteMark:
    """The accepted mark, of a remote side that has it, with one more run that follows it."""
    times = int(mark.details.get(_ATTACHED, "0")) + 1
    details = {**mark.details, **accepted.details, _ATTACHED: str(times)}
    return accepted._replace(key=mark.key, accepted=True, details=details)


def facts(call: GrantedCall, mark: RemoteMark) -> dict[str, str]:
    """Where it runs and under which names: for evidence, and for whoever must look there."""
    known = {
        "endpoint": _place(call, mark),
        "remote_id": mark.remote_id,
        "remote_key": mark.key,
        _SENT_AT: mark.details.get(_SENT_AT, ""),
        _ATTACHED: mark.details.get(_ATTACHED, ""),
    }
    return {name: value for name, value in known.items() if value}


def evidence(call: GrantedCall, mark: RemoteMark) -> Evidence:
    return Evidence(
        type=EvidenceType.TOOL,
        ref=mark.remote_id or mark.key,
        summary=f"ran at {_place(call, mark)}, {_name(mark)}",
        attributes={**mark.details, **facts(call, mark)},
    )


def unknown(call: GrantedCall, mark: RemoteMark, doubt: Doubt, why: Exception) -> ToolFailure:
    """OUTCOME_UNKNOWN: what was sent where, and how one can find out. `why`: RemoteUnclear or ToolFailure."""
    reason = why.error.message if isinstance(why, ToolFailure) else str(why)
    advice = (
        "It is safe to call it again."
        if call.safe_to_repeat
        else "Look for it there before you ask for it again: it may have had its effect."
    )
    at = f"{call.spec.name} at {_place(call, mark)}, {_name(mark)}"
    message = f"{at}: it {_HOW[doubt]}. {reason.rstrip('. ')}. {advice}"
    details = {**facts(call, mark), "cause": doubt.value, "reason": reason}
    return ToolFailure(ToolError(ErrorKind.OUTCOME_UNKNOWN, message, retryable=call.safe_to_repeat, details=details))


def located(call: GrantedCall, mark: RemoteMark, error: ToolError) -> ToolFailure:
    """The remote side's own verdict, with where it was given."""
    return ToolFailure(replace(error, details={**facts(call, mark), **error.details}))


def never_sent(call: GrantedCall) -> ToolFailure:
    return refuse(ErrorKind.CANCELLED, f"{call.spec.name} was cancelled before it began; nothing happened.")


def not_taken(call: GrantedCall, mark: RemoteMark, starts: int, reason: str) -> ToolFailure:
    """It was sent `starts` times, and the remote side certainly has it not. `reason`: why not."""
    message = f"{_place(call, mark)} did not take {call.spec.name}, and nothing runs there. {reason.rstrip('. ')}."
    details: JsonObject = {**facts(call, mark), "starts": starts, "reason": reason}
    return ToolFailure(ToolError(ErrorKind.TOOL_UNAVAILABLE, f"{message} Try again later.", details=details))


def no_job(call: GrantedCall) -> ToolFailure:
    """A defect of the hub: work on a remote side was about to run without a record by which to find it again."""
    message = (
        f"{call.spec.name} runs somewhere else and takes long, so it runs as a job only, and this call has none. "
        "Nothing was sent. Submit it as a job, and tell an operator."
    )
    return ToolFailure(ToolError(ErrorKind.INTERNAL, message, details={NOTHING_HAPPENED: True}))


def unforeseen(call: GrantedCall, mark: RemoteMark) -> ToolFailure:
    """A defect of the hub in the middle of it all; whatever runs on the remote side, runs on."""
    may = "Nothing was sent"
    where: JsonObject = {NOTHING_HAPPENED: True}
    if may_run(mark):
        may = "It may still run, and have its effect, on the remote side. Look there first"
        where = facts(call, mark)
    message = f"The hub failed while it ran {call.spec.name}; operators find it logged. {may}."
    return ToolFailure(ToolError(ErrorKind.INTERNAL, message, details=where))


def _place(call: GrantedCall, mark: RemoteMark) -> str:
    return mark.endpoint or call.spec.endpoint or call.spec.upstream_key


def _name(mark: RemoteMark) -> str:
    return f"there known as {mark.remote_id} (key {mark.key})" if mark.remote_id else f"under the key {mark.key}"
