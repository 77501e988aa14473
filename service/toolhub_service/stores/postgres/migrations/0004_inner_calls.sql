-- The log of inner calls: what jobs that replay have asked for and were answered.

CREATE TABLE inner_calls (
    job_id text COLLATE "C" NOT NULL,
    place text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    expires_at_unix_ms bigint NOT NULL,
    record bytea NOT NULL,
    PRIMARY KEY (job_id, place)
);

CREATE INDEX inner_calls_expiring ON inner_calls (expires_at_unix_ms, job_id, place);
