"""What a tool asks in the middle of a call, as a person sees it, and the person's answer, as the tool receives it.

The tool chooses the words of a question: so they are bounded and redacted, and the schema is checked before anybody
is asked. The continuation is opaque and stored unchanged. Why a question is an approval: docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, cast

from msgspec import structs

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.call import PlannedCall, Question, Reply
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.redaction import redact_text
from toolhub_service.schema.canonical_json import NotJson, digest, dumps
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.schema.defaults import compile_defaults
from toolhub_service.schema.references import SchemaRefused

MESSAGE_MAX_BYTES: Final = 4 * 1_024
QUESTION_MAX_BYTES: Final = 16 * 1_024
"""Limit for message and schema together, as canonical JSON."""
CONTINUATION_MAX_BYTES: Final = 64 * 1_024
UNASKED: Final = "unasked"
"""Error detail that marks a call whose tool asked a question which could not be put to anybody."""
ROUNDS_MAX: Final = 8
"""Most questions in one call."""


class AskedQuestion(NamedTuple):
    """A question as a person sees it."""

    question: Question
    """Redacted, except for its continuation."""
    digest: str
    """sha256 (hex) over its message and schema."""
    round: int
    """Number of the question within the call, from 1."""
    covers_rule_id: str
    """Rule whose own approval the asking run has used up; empty when there was none."""


def ask_question(
    planned: PlannedCall, question: Question, earlier: Approval | None, redactor: Redactor
) -> AskedQuestion:
    """Return the question of a run that has used up `earlier`. Raises ToolFailure UPSTREAM_ERROR for one that cannot be
    asked."""
    round = 1 if earlier is None else earlier.round + 1
    if round > ROUNDS_MAX:
        raise refuse_question(planned, f"asks more than {ROUNDS_MAX} questions in one call")
    if len(question.continuation.encode("utf-8", "replace")) > CONTINUATION_MAX_BYTES:
        raise refuse_question(
            planned, f"asks a question with a state of more than {CONTINUATION_MAX_BYTES // 1_024} KiB"
        )
    message = _cut(redact_text(question.message, redactor), MESSAGE_MAX_BYTES)
    schema = redact_schema(planned, question.schema, redactor)
    shown = replace(question, message=message, schema=schema)
    covers_rule_id = ""
    if earlier is not None:
        covers_rule_id = earlier.rule_id if earlier.question is None else earlier.covers_rule_id
    return AskedQuestion(shown, digest([message, schema]), round, covers_rule_id)


def answer_to(question: Question, answer: JsonObject | None) -> JsonObject:
    """Return the answer completed with the schema's defaults; None stands for an answer of defaults only.

    Raises ToolFailure INPUT_SCHEMA_INVALID with violations.
    """
    schema = compile_schema(question.schema)
    given = {} if answer is None else answer
    for candidate in (compile_defaults(schema).fill(given)[0], given):
        violations = schema.validate(candidate)
        if not violations:
            return candidate
    what = "The question needs an answer: " if answer is None else "The answer does not match the question: "
    raise refuse(
        ErrorKind.INPUT_SCHEMA_INVALID,
        what + " ".join(violation.message for violation in violations),
        violations=violations,
    )


def reply_to(approval: Approval | None) -> Reply | None:
    """Return the answer that the next run receives; None when the approval answers nothing."""
    if approval is None or approval.question is None:
        return None
    return Reply(approval.answer, approval.question.continuation)


def mark_unasked(refused: ToolFailure) -> ToolFailure:
    """Mark an error that says why nobody could be asked, so that a job knows that nothing was done; APPROVAL_REQUIRED
    stays unchanged."""
    error = refused.error
    if error.kind is ErrorKind.APPROVAL_REQUIRED:
        return refused
    return ToolFailure(structs.replace(error, details={**error.details, UNASKED: True}))


def without_reply(approval: Approval) -> Approval:
    """Return an approval that no run will follow, without what only such a run needs."""
    if approval.question is None:
        return approval
    return structs.replace(approval, question=replace(approval.question, continuation=""), answer=None)


def redact_schema(planned: PlannedCall, schema: JsonObject, redactor: Redactor) -> JsonObject:
    """Return the redacted schema, by which the answer is validated too."""
    try:
        if len(dumps(schema)) > QUESTION_MAX_BYTES - MESSAGE_MAX_BYTES:
            raise refuse_question(planned, f"asks a question of more than {QUESTION_MAX_BYTES // 1_024} KiB")
        shown = cast(JsonObject, redact_texts(schema, redactor))
        compile_schema(shown)
    except NotJson as broken:
        raise refuse_question(planned, "asks a question whose schema is not JSON") from broken
    except SchemaRefused as refused:
        raise refuse_question(planned, f"asks a question whose schema is refused as {refused.reason}") from refused
    return shown


def redact_texts(value: JsonValue, redactor: Redactor) -> JsonValue:
    """Redact each text by itself: in a schema the name of a property is no sign of a secret, see `failures.py`."""
    if isinstance(value, str):
        return redactor.text(value)
    if isinstance(value, Mapping):
        return {redactor.text(name): redact_texts(member, redactor) for name, member in value.items()}
    if isinstance(value, Sequence):
        return [redact_texts(item, redactor) for item in value]
    return value


def refuse_question(planned: PlannedCall, what: str) -> ToolFailure:
    """Return the error of a question that cannot be asked: the call is over, and the tool must be corrected."""
    text = f"{planned.spec.name} {what}, which the hub does not pass on. Nothing was done. Use another tool."
    return refuse(ErrorKind.UPSTREAM_ERROR, text, retryable=False)


def _cut(text: str, max_bytes: int) -> str:
    data = text.encode()
    return text if len(data) <= max_bytes else data[: max_bytes - 3].decode(errors="ignore") + "…"
