"""What a row of the tables of errors says: error_kinds.py (of calls), reasons.py and start_reasons.py (of RPCs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, Self


class Code(Enum):
    """google.rpc.Code, by number."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class KindSpec:
    code: Code
    """The gRPC code that an RPC error of the same meaning has."""
    meaning: str
    """When it happens. Sentences in Markdown, for people."""
    advice: str
    """What a model should do. Sentences in Markdown."""
    retryable: bool = False
    """Of an error that does not say: whether waiting can help, and sending the call again does no harm."""
    details: Mapping[str, str] = field(default_factory=dict)
    """Names of entries of `details`, separated by commas, to what they mean."""

    @property
    def detail_names(self) -> frozenset[str]:
        return names_in(self.details)


def names_in(details: Mapping[str, str]) -> frozenset[str]:
    """The single names of a table whose keys may hold several."""
    return frozenset(name for names in details for name in names.split(", "))


POLICY_DETAILS: Final[Mapping[str, str]] = {
    "rule_id": "the rule, or the built-in check, that refused",
    "policy_revision": "the digest of the policy in force",
    "remedy": "what would make the call pass; lines for an operator to add to policy.yaml",
}
"""Of whatever step `check_policy` refuses, of every kind."""

REMOTE_DETAILS: Final[Mapping[str, str]] = {
    "endpoint, remote_id, remote_key": "where the work runs or ran, and under which names",
    "sent_at_unix_ms, attached": "when it was sent, and how often the hub has followed it anew",
    "source, workflow_id, workflow_version": "of a workflow of n8n: which one",
    "execution_id, execution_status, duration_ms": "which run of it, how that ended and after how long",
    "looked_up, other_executions": "whether the run was found by its key, and how many others were found with it",
}
"""Of whatever work on a remote side ends with, of every kind."""

JOB_DETAILS: Final[Mapping[str, str]] = {
    "unasked": "true: the tool asked a question that could not be put to a person yet; the job tries again",
}
"""Of what keeps a question from being asked."""

COMMON_DETAILS: Final[frozenset[str]] = names_in({**POLICY_DETAILS, **REMOTE_DETAILS, **JOB_DETAILS})


class HubReason(StrEnum):
    """The columns of a table of reasons; the value is the name on the wire, UPPER_SNAKE, at most 63 characters."""

    code: Code
    meaning: str
    """When it happens. Sentences in Markdown, for people."""
    advice: str
    """What the caller or the operator should do; empty where the meaning says it."""
    metadata: frozenset[str]
    """Names of entries of ErrorInfo's metadata that it may have."""
    retry_after_s: float | None
    """Seconds to wait before asking again, of a failure that says no other; None: waiting does not help."""

    def __new__(
        cls, name: str, code: Code, meaning: str, advice: str, metadata: str = "", retry_after_s: float | None = None
    ) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.code, member.meaning, member.advice = code, meaning, advice
        member.metadata = frozenset(metadata.split(", ")) if metadata else frozenset()
        member.retry_after_s = retry_after_s
        return member
