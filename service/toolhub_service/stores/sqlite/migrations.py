"""The layout of the hub's own file and its migrations, applied in order by `PRAGMA user_version`.

The columns repeat what pages, sweeps and compare-and-set need of a record; the record itself is the blob of `codec`. A
released migration is never changed; a new one follows it. Tables that are declared by their columns
(`declared_table.py`) have none: they do not raise the version, so that the hub before opens the file, too.
"""

from __future__ import annotations

from typing import Final, TypeAlias

_JOBS: Final = (
    """CREATE TABLE jobs (
        job_id TEXT PRIMARY KEY, version INTEGER NOT NULL, sequence INTEGER NOT NULL, state TEXT NOT NULL,
        is_final INTEGER NOT NULL, runner TEXT NOT NULL, created_at_unix_ms INTEGER NOT NULL,
        entered_at_unix_ms INTEGER NOT NULL, deadline_unix_ms INTEGER NOT NULL, expires_at_unix_ms INTEGER NOT NULL,
        principal TEXT NOT NULL, tool TEXT NOT NULL, idempotency_key TEXT NOT NULL, request_id TEXT NOT NULL,
        task_id TEXT NOT NULL, frame BLOB NOT NULL)""",
    "CREATE INDEX jobs_by_time ON jobs (created_at_unix_ms, job_id)",
    "CREATE INDEX jobs_by_principal ON jobs (principal, created_at_unix_ms, job_id)",
    "CREATE UNIQUE INDEX jobs_by_key ON jobs (principal, tool, idempotency_key) WHERE idempotency_key != ''",
    "CREATE INDEX jobs_open ON jobs (state) WHERE is_final = 0",
    "CREATE INDEX jobs_expiring ON jobs (expires_at_unix_ms) WHERE is_final = 1",
    "CREATE TABLE job_args (job_id TEXT PRIMARY KEY, args BLOB NOT NULL)",
    """CREATE TABLE job_entries (
        row INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL, sequence INTEGER NOT NULL, status BLOB NOT NULL,
        UNIQUE (job_id, sequence))""",
    "CREATE TABLE runners (runner TEXT PRIMARY KEY, alive_until_unix_ms INTEGER NOT NULL)",
)
_KEYS: Final = (
    """CREATE TABLE keys (
        principal TEXT NOT NULL, tool TEXT NOT NULL, key TEXT NOT NULL, owner TEXT NOT NULL, settled INTEGER NOT NULL,
        expires_at_unix_ms INTEGER NOT NULL, size_bytes INTEGER NOT NULL, record BLOB NOT NULL,
        UNIQUE (principal, tool, key))""",
    "CREATE INDEX keys_expiring ON keys (expires_at_unix_ms)",
    "CREATE TABLE key_usage (keys INTEGER NOT NULL, size_bytes INTEGER NOT NULL)",
    "INSERT INTO key_usage VALUES (0, 0)",
    """CREATE TRIGGER key_put AFTER INSERT ON keys BEGIN
        UPDATE key_usage SET keys = keys + 1, size_bytes = size_bytes + new.size_bytes; END""",
    """CREATE TRIGGER key_changed AFTER UPDATE OF size_bytes ON keys BEGIN
        UPDATE key_usage SET size_bytes = size_bytes + new.size_bytes - old.size_bytes; END""",
    """CREATE TRIGGER key_forgotten AFTER DELETE ON keys BEGIN
        UPDATE key_usage SET keys = keys - 1, size_bytes = size_bytes - old.size_bytes; END""",
)
_APPROVALS: Final = (
    """CREATE TABLE approvals (
        approval_id TEXT PRIMARY KEY, version INTEGER NOT NULL, state TEXT NOT NULL, is_open INTEGER NOT NULL,
        binding TEXT NOT NULL, principal TEXT NOT NULL, tool TEXT NOT NULL, requested_at_unix_ms INTEGER NOT NULL,
        expires_at_unix_ms INTEGER NOT NULL, record BLOB NOT NULL)""",
    "CREATE INDEX approvals_by_time ON approvals (requested_at_unix_ms, approval_id)",
    "CREATE INDEX approvals_by_principal ON approvals (principal, requested_at_unix_ms, approval_id)",
    "CREATE INDEX approvals_open ON approvals (binding) WHERE is_open = 1",
    "CREATE INDEX approvals_expiring ON approvals (is_open, expires_at_unix_ms)",
    """CREATE TABLE approval_changes (
        row INTEGER PRIMARY KEY AUTOINCREMENT, approval_id TEXT NOT NULL, record BLOB NOT NULL)""",
    "CREATE INDEX approval_changes_of ON approval_changes (approval_id)",
)
_ARTIFACTS: Final = (
    """CREATE TABLE artifacts (
        artifact_id TEXT PRIMARY KEY, sha256 TEXT NOT NULL, principal TEXT NOT NULL, size_bytes INTEGER NOT NULL,
        expires_at_unix_ms INTEGER NOT NULL, record BLOB NOT NULL)""",
    "CREATE INDEX artifacts_by_sha256 ON artifacts (sha256)",
    "CREATE INDEX artifacts_by_principal ON artifacts (principal, size_bytes)",
    "CREATE INDEX artifacts_expiring ON artifacts (expires_at_unix_ms)",
)
_PINS: Final = (
    """CREATE TABLE pins (
        source TEXT NOT NULL, tool TEXT NOT NULL, digest TEXT NOT NULL, version INTEGER NOT NULL, state TEXT NOT NULL,
        seen_at_unix_ms INTEGER NOT NULL, record BLOB NOT NULL, PRIMARY KEY (source, tool, digest))""",
    "CREATE INDEX pins_by_time ON pins (seen_at_unix_ms, source, tool, digest, state)",
    "CREATE TABLE pin_revision (revision INTEGER NOT NULL)",
    "INSERT INTO pin_revision VALUES (0)",
)
_USES: Final = (
    """CREATE TABLE tool_uses (
        row INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, tool TEXT NOT NULL, agent TEXT NOT NULL,
        purpose TEXT NOT NULL, at_unix_ms INTEGER NOT NULL)""",
    "CREATE INDEX tool_uses_of ON tool_uses (tenant, tool)",
    "CREATE INDEX tool_uses_by_time ON tool_uses (at_unix_ms)",
)
_SHARES_OF_KEYS: Final = (
    """CREATE TABLE key_usage_of (
        principal TEXT PRIMARY KEY, keys INTEGER NOT NULL, size_bytes INTEGER NOT NULL) WITHOUT ROWID""",
    "INSERT INTO key_usage_of SELECT principal, count(*), sum(size_bytes) FROM keys GROUP BY principal",
    """CREATE TRIGGER key_put_of AFTER INSERT ON keys BEGIN
        INSERT INTO key_usage_of VALUES (new.principal, 1, new.size_bytes)
            ON CONFLICT (principal) DO UPDATE SET
                keys = keys + 1, size_bytes = size_bytes + excluded.size_bytes; END""",
    """CREATE TRIGGER key_changed_of AFTER UPDATE OF size_bytes ON keys BEGIN
        UPDATE key_usage_of SET size_bytes = size_bytes + new.size_bytes - old.size_bytes
            WHERE principal = new.principal; END""",
    """CREATE TRIGGER key_forgotten_of AFTER DELETE ON keys BEGIN
        UPDATE key_usage_of SET keys = keys - 1, size_bytes = size_bytes - old.size_bytes
            WHERE principal = old.principal;
        DELETE FROM key_usage_of WHERE principal = old.principal AND keys = 0; END""",
)
Migrations: TypeAlias = tuple[tuple[str, ...], ...]
_INNER_CALLS: Final = (
    """CREATE TABLE inner_calls (
        job_id TEXT NOT NULL, place TEXT NOT NULL, version INTEGER NOT NULL, expires_at_unix_ms INTEGER NOT NULL,
        record BLOB NOT NULL, PRIMARY KEY (job_id, place))""",
    "CREATE INDEX inner_calls_expiring ON inner_calls (expires_at_unix_ms, job_id, place)",
)
MIGRATIONS: Final[Migrations] = (
    (*_JOBS, *_KEYS, *_APPROVALS, *_ARTIFACTS),
    (*_PINS, *_USES),
    _SHARES_OF_KEYS,
    _INNER_CALLS,
)
"""From version n of the file to n + 1. The next one is preceded by an empty one: see COUNTED_ADDITION."""
COUNTED_ADDITION: Final = 5
"""The version that the hubs of one day gave to files with the table of credentials; such a file has the version
before."""
