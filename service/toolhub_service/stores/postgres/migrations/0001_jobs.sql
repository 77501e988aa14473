-- Jobs, their histories and the processes that run them.
--
-- What changes with progress (sequence, entered_at_unix_ms, frame) is in no index, so that an update stays on its page
-- (HOT); arguments are written once and are never copied again (TOAST). Ids that callers choose are indexed by hash: a
-- B-tree refuses long ones.

CREATE TABLE jobs (
    job_id text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    sequence bigint NOT NULL,
    state text NOT NULL,
    is_final boolean NOT NULL,
    runner text NOT NULL,
    created_at_unix_ms bigint NOT NULL,
    entered_at_unix_ms bigint NOT NULL,
    deadline_unix_ms bigint NOT NULL,
    expires_at_unix_ms bigint NOT NULL,
    principal text NOT NULL,
    tool text COLLATE "C" NOT NULL,
    request_id text NOT NULL,
    task_id text NOT NULL,
    key_digest bytea UNIQUE,
    frame bytea NOT NULL,
    args bytea NOT NULL
) WITH (fillfactor = 70);

COMMENT ON COLUMN jobs.key_digest IS 'sha256 of principal, tool and idempotency key; null without a key';

CREATE INDEX jobs_by_time ON jobs (created_at_unix_ms, job_id);
CREATE INDEX jobs_by_tool ON jobs (tool);
CREATE INDEX jobs_by_principal ON jobs USING hash (principal);
CREATE INDEX jobs_by_request ON jobs USING hash (request_id);
CREATE INDEX jobs_by_task ON jobs USING hash (task_id);
CREATE INDEX jobs_open ON jobs (state) WHERE NOT is_final;
CREATE INDEX jobs_expiring ON jobs (expires_at_unix_ms) WHERE is_final;

CREATE TABLE job_entries (
    job_id text COLLATE "C" NOT NULL,
    sequence bigint NOT NULL,
    status bytea NOT NULL,
    PRIMARY KEY (job_id, sequence)
);

CREATE TABLE runners (
    runner text PRIMARY KEY,
    alive_until_unix_ms bigint NOT NULL
);
