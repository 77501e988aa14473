"""Jobs as rows of PostgreSQL, and filters as terms over them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, LiteralString, NamedTuple

from toolhub_service.domain.job import Job, JobFilter
from toolhub_service.domain.job_machine import may_follow
from toolhub_service.domain.job_state import JobState
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.codec import (
    decode_args,
    decode_job_frame,
    decode_status,
    encode_args,
    encode_job_frame,
    encode_status,
)

_BEFORE: Final = {then: " ".join(now.value for now in JobState if may_follow(now, then)) for then in JobState}
"""The states that each state may follow."""


class Written(NamedTuple):
    """A job ready to be written."""

    job: Job
    changing: tuple[Any, ...]
    """The columns that every change writes, in the statements' order."""
    lasting: tuple[Any, ...] = ()
    """Those that only a new job has; the last but one is the digest of its key."""

    @property
    def id(self) -> str:
        """As the columns hold it."""
        return text(self.job.job_id)

    @property
    def before(self) -> str:
        return _BEFORE[self.job.state]

    @property
    def key_digest(self) -> bytes | None:
        digest: bytes | None = self.lasting[-2]
        return digest


def written(job: Job, *, new: bool = False) -> Written:
    """Raises ValueError for what cannot be written."""
    status = job.status
    changing = (
        text(job.job_id),
        job.version,
        status.sequence,
        status.state.value,
        status.state.is_final,
        text(job.runner),
        status.at_unix_ms,
        job.deadline_unix_ms,
        job.expires_at_unix_ms,
        encode_job_frame(job),
        encode_status(status),
    )
    return Written(job, changing, _lasting(job) if new else ())


def _lasting(job: Job) -> tuple[Any, ...]:
    call = job.call
    found_by = (call.principal.id, call.tool, call.context.request_id, call.context.task_id)
    return (job.created_at_unix_ms, *map(text, found_by), _key_digest(job), encode_args(call.args))


def _key_digest(job: Job) -> bytes | None:
    call = job.call
    if not call.idempotency_key:
        return None
    return hashlib.sha256(dumps([call.principal.id, call.tool, call.idempotency_key])).digest()


def columns(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def job_of(row: Sequence[Any]) -> Job:
    """Raises UnreadableRecord."""
    frame, status, args = row
    return decode_job_frame(frame, decode_status(status), decode_args(args))


def text(value: str) -> str:
    """As a column holds it, each text in a way of its own: PostgreSQL's text has no NUL."""
    return value.replace("\\", "\\\\").replace("\0", "\\0") if "\\" in value or "\0" in value else value


def terms_of(where: JobFilter, tools: Sequence[str] | None) -> tuple[LiteralString, list[Any]]:
    """The filter as a WHERE clause with its parameters. `tools`: what its glob matches; None where it has none."""
    terms: LiteralString = "TRUE"
    parameters: list[Any] = []
    wanted: tuple[tuple[LiteralString, str], ...] = (
        ("principal", where.principal),
        ("tool", where.tool if tools is None else ""),
        ("request_id", where.request_id),
        ("task_id", where.task_id),
    )
    for column, value in wanted:
        if value:
            terms += f" AND {column} = %s"
            parameters.append(text(value))
    if tools is not None:
        terms += " AND tool = ANY (%s)"
        parameters.append(list(tools))
    if where.states:
        terms += " AND state = ANY (%s)"
        parameters.append([state.value for state in where.states])
    return terms, parameters
