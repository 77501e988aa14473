"""Reasons why a hub does not start: `toolhub serve` prints the message and exits with 1."""

from __future__ import annotations

from toolhub_service.domain.error_spec import Code, HubReason


class StartReason(HubReason):
    """Of settings, keys and stores without which nothing may be served."""

    AUDIT_LOG_CHANGED = (
        "AUDIT_LOG_CHANGED",
        Code.FAILED_PRECONDITION,
        "A file, table or row of the audit log is gone or was changed.",
        "Restore it; or move the log away and run `toolhub audit begin`.",
    )
    AUDIT_KEY_MISSING = (
        "AUDIT_KEY_MISSING",
        Code.FAILED_PRECONDITION,
        "The key of an audit log that has events is gone.",
        "Put it back, or move the log away.",
    )
    AUDIT_KEY_EXPOSED = (
        "AUDIT_KEY_EXPOSED",
        Code.FAILED_PRECONDITION,
        "Others may read the audit key.",
        "Set its mode to 600, then `toolhub audit rotate-key`.",
    )
    AUDIT_KEY_INVALID = (
        "AUDIT_KEY_INVALID",
        Code.FAILED_PRECONDITION,
        "The audit key file is empty or damaged.",
        "Put back the copy.",
    )
    METRICS_NOT_SHARED = (
        "METRICS_NOT_SHARED",
        Code.FAILED_PRECONDITION,
        "`PROMETHEUS_MULTIPROC_DIR` was set too late.",
        "The supervisor of `--workers` sets it by itself.",
    )
    OTLP_EXPORTER_MISSING = (
        "OTLP_EXPORTER_MISSING",
        Code.FAILED_PRECONDITION,
        "`tracing.otlp_endpoint` is set and the exporter is not installed: `pip install 'tool-hub[otlp]'`.",
        "",
    )
    EXTRA_MISSING = (
        "EXTRA_MISSING",
        Code.FAILED_PRECONDITION,
        "A setting names what is not installed; the message says which extra to install.",
        "",
    )
    REDIS_URL_INVALID = (
        "REDIS_URL_INVALID",
        Code.INVALID_ARGUMENT,
        "`stores.redis_url` is no URL of a Redis.",
        "The message shows the forms, never the URL itself.",
    )
    REDIS_EVICTS = (
        "REDIS_EVICTS",
        Code.FAILED_PRECONDITION,
        "Redis evicts keys when its memory is full.",
        "Set `maxmemory-policy noeviction`; see [operations](operations.md#redis).",
    )
    POSTGRES_URL_INVALID = (
        "POSTGRES_URL_INVALID",
        Code.FAILED_PRECONDITION,
        "`stores.postgres_url` cannot be read.",
        "",
    )
    STORE_TOO_NEW = (
        "STORE_TOO_NEW",
        Code.FAILED_PRECONDITION,
        "The tables in PostgreSQL belong to a newer hub.",
        "Start that one, or restore a backup from before.",
    )
    STORES_NOT_SHARED = (
        "STORES_NOT_SHARED",
        Code.FAILED_PRECONDITION,
        "`stores.kind: memory` and several workers.",
        "Use sqlite, or one worker.",
    )
    ENGINE_NEEDS_REDIS = (
        "ENGINE_NEEDS_REDIS",
        Code.FAILED_PRECONDITION,
        "`jobs.engine: docket` without `stores.redis_url`.",
        "",
    )
    BUCKET_URL_INVALID = (
        "BUCKET_URL_INVALID",
        Code.INVALID_ARGUMENT,
        "`artifacts.bucket_url` does not read `s3://name` or `s3://name/prefix`.",
        "",
    )
    BUCKET_SECRET_UNREADABLE = (
        "BUCKET_SECRET_UNREADABLE",
        Code.FAILED_PRECONDITION,
        "A file that `AWS_…_FILE` names for `artifacts.bucket_url` cannot be read.",
        "",
    )
    WEBHOOK_INVALID = (
        "WEBHOOK_INVALID",
        Code.FAILED_PRECONDITION,
        "`approvals.webhook_url` or its secret is unusable: no http(s) URL, an unreadable file, less than 16 bytes.",
        "",
    )
    EMBEDDER_UNUSABLE = (
        "EMBEDDER_UNUSABLE",
        Code.FAILED_PRECONDITION,
        "`search.embedder` cannot be loaded, or its module is not in `tools.trusted_namespaces`.",
        "",
        "path",
    )
