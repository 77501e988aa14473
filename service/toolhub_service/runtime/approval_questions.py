"""What a tool asks in the middle of a call, fit for a person; and the person's answer, fit for the tool.

A question is the tool's own words: bounded, redacted, its schema judged before anybody is bothered with it. Its
continuation is opaque and kept as it is. Why a question is an approval: docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, cast

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors import ErrorKind, ToolFailure, Violation, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.question import Question, Reply
from toolhub_service.guards.secrets import Redactor
from toolhub_service.schema.canonical_json import NotJson, digest, dumps
from toolhub_service.schema.compiled import CompiledSchema, compile_schema
from toolhub_service.schema.defaults import compile_defaults
from toolhub_service.schema.refusal import SchemaRefused

MESSAGE_MAX_BYTES: Final = 4 * 1_024
QUESTION_MAX_BYTES: Final = 16 * 1_024
"""Message and schema together, canonical JSON."""
CONTINUATION_MAX_BYTES: Final = 64 * 1_024
UNASKED: Final = "unasked"
"""Among the details of a call whose tool asked, and nobody was."""
ROUNDS_MAX: Final = 8
"""Questions in one call."""


class Posed(NamedTuple):
    """A question as a person is asked it."""

    question: Question
    """Redacted but for its continuation."""
    digest: str
    """sha256 (hex) over its message and schema."""
    round: int
    """Which question of the call it is, from 1."""
    covers_rule_id: str
    """The rule whose own approval the run that asked has used up; empty when none asked."""


def posed(planned: PlannedCall, question: Question, earlier: Approval | None, redactor: Redactor) -> Posed:
    """The question of a run that has used up `earlier`. Raises ToolFailure UPSTREAM_ERROR for one that is not asked."""
    round = 1 if earlier is None else earlier.round + 1
    if round > ROUNDS_MAX:
        raise _unasked(planned, f"asks more than {ROUNDS_MAX} questions in one call")
    if len(question.continuation.encode("utf-8", "replace")) > CONTINUATION_MAX_BYTES:
        raise _unasked(planned, f"asks a question with a state of more than {CONTINUATION_MAX_BYTES // 1_024} KiB")
    message = _cut(redactor.text(_mended(question.message)), MESSAGE_MAX_BYTES)
    schema = _shown_schema(planned, question.schema, redactor)
    shown = replace(question, message=message, schema=schema)
    return Posed(shown, digest([message, schema]), round, _covered(earlier))


def answer_to(question: Question, answer: JsonObject | None) -> JsonObject:
    """The answer with the schema's defaults; None: they alone are to be it.

    Raises ToolFailure INPUT_SCHEMA_INVALID with violations.
    """
    schema = compile_schema(question.schema)
    given = {} if answer is None else answer
    for candidate in (_completed(schema, given), given):
        violations = schema.validate(candidate)
        if not violations:
            return candidate
    raise _unfit(violations, is_given=answer is not None)


def reply_to(approval: Approval | None) -> Reply | None:
    """What the run that follows is given; None when it answers nothing."""
    if approval is None or approval.question is None:
        return None
    return Reply(approval.answer, approval.question.continuation)


def marked_unasked(refused: ToolFailure) -> ToolFailure:
    """Why nobody could be asked, so that a job knows that it has done nothing; APPROVAL_REQUIRED as it is."""
    error = refused.error
    if error.kind is ErrorKind.APPROVAL_REQUIRED:
        return refused
    return ToolFailure(replace(error, details={**error.details, UNASKED: True}))


def without_reply(approval: Approval) -> Approval:
    """Of an approval that no run will follow: what only such a run needs is not kept."""
    if approval.question is None:
        return approval
    return replace(approval, question=replace(approval.question, continuation=""), answer=None)


def _covered(earlier: Approval | None) -> str:
    if earlier is None:
        return ""
    return earlier.rule_id if earlier.question is None else earlier.covers_rule_id


def _shown_schema(planned: PlannedCall, schema: JsonObject, redactor: Redactor) -> JsonObject:
    """What the person sees is what the answer is judged by."""
    try:
        if len(dumps(schema)) > QUESTION_MAX_BYTES - MESSAGE_MAX_BYTES:
            raise _unasked(planned, f"asks a question of more than {QUESTION_MAX_BYTES // 1_024} KiB")
        shown = cast(JsonObject, _redacted(schema, redactor))
        compile_schema(shown)
    except NotJson as broken:
        raise _unasked(planned, "asks a question whose schema is not JSON") from broken
    except SchemaRefused as refused:
        raise _unasked(planned, f"asks a question whose schema is refused as {refused.reason}") from refused
    return shown


def _redacted(value: JsonValue, redactor: Redactor) -> JsonValue:
    """Text by text, for the name of a property is no sign of a secret in a schema: see `redact.py`."""
    if isinstance(value, str):
        return redactor.text(value)
    if isinstance(value, Mapping):
        return {redactor.text(name): _redacted(member, redactor) for name, member in value.items()}
    if isinstance(value, Sequence):
        return [_redacted(item, redactor) for item in value]
    return value


def _completed(schema: CompiledSchema, answer: JsonObject) -> JsonObject:
    return compile_defaults(schema).fill(answer)[0]


def _unasked(planned: PlannedCall, what: str) -> ToolFailure:
    """Nobody is asked: the call is over, and the tool must be mended."""
    text = f"{planned.spec.name} {what}, which the hub puts to nobody. Nothing was done; use another tool."
    return refuse(ErrorKind.UPSTREAM_ERROR, text, retryable=False)


def _unfit(violations: tuple[Violation, ...], *, is_given: bool) -> ToolFailure:
    what = "The answer does not fit the question: " if is_given else "The question needs an answer: "
    return refuse(
        ErrorKind.INPUT_SCHEMA_INVALID,
        what + " ".join(violation.message for violation in violations),
        violations=violations,
    )


def _cut(text: str, max_bytes: int) -> str:
    data = text.encode()
    return text if len(data) <= max_bytes else data[: max_bytes - 3].decode(errors="ignore") + "…"


def _mended(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
