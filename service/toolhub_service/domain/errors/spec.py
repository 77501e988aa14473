"""What a row of the tables of errors says (kinds.py, reasons.py), and the table of why a hub does not start."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec


# Defined here, because the domain does not import gRPC.
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


class KindSpec(msgspec.Struct, frozen=True):
    code: Code
    """The gRPC code that an RPC error of the same meaning has."""
    meaning: str
    """When it happens. Sentences in Markdown, for people."""
    advice: str
    """What a model should do. Sentences in Markdown, for docs and clients; the message of an error is written where
    the error is raised."""
    retryable: bool = False
    """Of an error that does not say: whether waiting can help, and sending the call again does no harm."""
    details: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Names of entries of `details`, separated by commas, to what they mean."""

    @property
    def detail_names(self) -> frozenset[str]:
        return names_in(self.details)


def names_in(details: Mapping[str, str]) -> frozenset[str]:
    """Return the single names of a table whose keys may contain several."""
    return frozenset(name for names in details for name in names.split(", "))


POLICY_DETAILS: Final[Mapping[str, str]] = {
    "rule_id": "the rule, or the built-in check, that refused",
    "policy_revision": "the digest of the policy in force",
    "remedy": "whom to ask to allow the call; for a caller with the role operator, the lines to add to policy.yaml",
}
"""Of whatever step `check_policy` refuses, of every kind."""

REMOTE_DETAILS: Final[Mapping[str, str]] = {
    "endpoint, remote_id, remote_key": "where the work runs or ran, and under which names",
    "sent_at_unix_ms, attached": "when it was sent, and how often the hub has reconnected to it",
    "source, workflow_id, workflow_version": "of a workflow of n8n: which one",
    "execution_id, execution_status, duration_ms": "which execution, its status and its duration",
    "looked_up, other_executions": "whether the run was found by its key, and how many others were found with it",
}
"""Of whatever work on a remote side ends with, of every kind."""

JOB_DETAILS: Final[Mapping[str, str]] = {
    "unasked": "true: the tool asked a question that could not be presented to a person yet; the job tries again",
}
"""Of what keeps a question from being asked."""

COMMON_DETAILS: Final[frozenset[str]] = names_in({**POLICY_DETAILS, **REMOTE_DETAILS, **JOB_DETAILS})


class HubReason(Enum):
    """The columns of a table of reasons; the member's name is the one on the wire."""

    def __init__(
        self, code: Code, meaning: str, advice: str = "", metadata: str = "", retry_after_s: float | None = None
    ) -> None:
        self.code = code
        self.meaning = meaning
        """When it happens. Sentences in Markdown, for people."""
        self.advice = advice
        """What the caller or the operator should do, for docs and clients; the message of a failure is written where it
        is raised. Empty where the meaning says it."""
        self.metadata = frozenset(metadata.split(", ")) if metadata else frozenset()
        """Names of entries of ErrorInfo's metadata that it may have."""
        self.retry_after_s = retry_after_s
        """Seconds to wait before asking again, of a failure that says no other; None: waiting does not help."""


# Reasons why a hub does not start: `toolhub serve` prints the message and exits with 1.


class StartReason(HubReason):
    """Of settings, keys and stores without which nothing may be served."""

    AUDIT_LOG_CHANGED = (
        Code.FAILED_PRECONDITION,
        "A file, table or row of the audit log is gone or was changed.",
        "Restore it, or move the log away and run `toolhub audit begin`.",
    )
    AUDIT_KEY_MISSING = (
        Code.FAILED_PRECONDITION,
        "The audit log has events, and its key is missing.",
        "Restore the key, or move the log away.",
    )
    AUDIT_KEY_EXPOSED = (
        Code.FAILED_PRECONDITION,
        "Other users can read the audit key.",
        "Set its mode to 600, then `toolhub audit rotate-key`.",
    )
    AUDIT_KEY_INVALID = (
        Code.FAILED_PRECONDITION,
        "The file of the audit key is empty or damaged.",
        "Restore it from a copy.",
    )
    METRICS_NOT_SHARED = (
        Code.FAILED_PRECONDITION,
        "`PROMETHEUS_MULTIPROC_DIR` was set too late.",
        "Unset it; the supervisor of `--workers` sets it.",
    )
    OTLP_EXPORTER_MISSING = (
        Code.FAILED_PRECONDITION,
        "`tracing.otlp_endpoint` is set and the exporter is not installed: `toolhub extras install otlp`.",
    )
    EXTRA_MISSING = (
        Code.FAILED_PRECONDITION,
        "A setting needs a package that is not installed; the message names the extra to install.",
    )
    REDIS_URL_INVALID = (
        Code.INVALID_ARGUMENT,
        "`stores.redis_url` is not a Redis URL.",
        "The message shows the forms, never the URL itself.",
    )
    REDIS_EVICTS = (
        Code.FAILED_PRECONDITION,
        "Redis evicts keys when its memory is full.",
        "Set `maxmemory-policy noeviction`; see [deploy](deploy.md#redis).",
    )
    POSTGRES_URL_INVALID = (Code.FAILED_PRECONDITION, "`stores.postgres_url` cannot be read.")
    STORE_TOO_NEW = (
        Code.FAILED_PRECONDITION,
        "The tables in PostgreSQL were written by a newer version of the hub.",
        "Start that version, or restore an older backup.",
    )
    STORES_NOT_SHARED = (
        Code.FAILED_PRECONDITION,
        "`stores.kind: memory` does not work with several workers.",
        "Use `sqlite`, or one worker.",
    )
    SEALING_KEY_UNUSABLE = (
        Code.FAILED_PRECONDITION,
        "A key of `credentials.keys` is missing or is not one.",
        "The message says which; see [credentials](credentials.md#keys).",
    )
    STORES_NEED_POSTGRES = (Code.FAILED_PRECONDITION, "`stores.kind: postgres` requires `stores.postgres_url`.")
    ENGINE_NEEDS_REDIS = (Code.FAILED_PRECONDITION, "`jobs.engine: docket` requires `stores.redis_url`.")
    BUCKET_URL_INVALID = (
        Code.INVALID_ARGUMENT,
        "`artifacts.bucket_url` does not have the form `s3://name` or `s3://name/prefix`.",
    )
    BUCKET_SECRET_UNREADABLE = (
        Code.FAILED_PRECONDITION,
        "A file that `AWS_…_FILE` names for `artifacts.bucket_url` cannot be read.",
    )
    WEBHOOK_INVALID = (
        Code.FAILED_PRECONDITION,
        "`approvals.webhook_url` is not an http(s) URL, or its secret file cannot be read or has fewer than 16 bytes.",
    )
    EMBEDDER_UNUSABLE = (
        Code.FAILED_PRECONDITION,
        "`search.embedder` cannot be loaded, or its module is not in `tools.trusted_namespaces`.",
        "",
        "path",
    )
