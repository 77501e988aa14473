-- Approvals, records of artifacts, pins, uses of tools, idempotency keys and counts: kept here with `stores.kind: postgres`.
--
-- Those who write to one table come one after the other (an advisory lock), so uniqueness over several rows needs no
-- index. Texts that callers choose are indexed by hash, as those of jobs are.

CREATE TABLE record_revisions (
    name text PRIMARY KEY,
    revision bigint NOT NULL
);

CREATE TABLE approvals (
    approval_id text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    state text NOT NULL,
    is_open boolean NOT NULL,
    binding text NOT NULL,
    principal text NOT NULL,
    tool text COLLATE "C" NOT NULL,
    requested_at_unix_ms bigint NOT NULL,
    expires_at_unix_ms bigint NOT NULL,
    record bytea NOT NULL
);

CREATE INDEX approvals_by_time ON approvals (requested_at_unix_ms, approval_id);
CREATE INDEX approvals_by_tool ON approvals (tool);
CREATE INDEX approvals_by_principal ON approvals USING hash (principal);
CREATE INDEX approvals_open ON approvals USING hash (binding) WHERE is_open;
CREATE INDEX approvals_expiring ON approvals (is_open, expires_at_unix_ms, approval_id);

CREATE TABLE artifacts (
    artifact_id text COLLATE "C" PRIMARY KEY,
    sha256 text NOT NULL,
    principal text NOT NULL,
    size_bytes bigint NOT NULL,
    expires_at_unix_ms bigint NOT NULL,
    record bytea NOT NULL
);

CREATE INDEX artifacts_by_sha256 ON artifacts USING hash (sha256);
CREATE INDEX artifacts_by_principal ON artifacts USING hash (principal);
CREATE INDEX artifacts_expiring ON artifacts (expires_at_unix_ms, artifact_id);

CREATE TABLE pins (
    source text COLLATE "C" NOT NULL,
    tool text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    state text NOT NULL,
    seen_at_unix_ms bigint NOT NULL,
    record bytea NOT NULL,
    PRIMARY KEY (source, tool, digest)
);

CREATE INDEX pins_by_time ON pins (seen_at_unix_ms, source, tool, digest);
CREATE INDEX pins_by_tool ON pins (tool);

CREATE TABLE tool_uses (
    row bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL,
    tool text COLLATE "C" NOT NULL,
    record bytea NOT NULL,
    at_unix_ms bigint NOT NULL
);

CREATE INDEX tool_uses_of ON tool_uses (tool, row);
CREATE INDEX tool_uses_by_time ON tool_uses (at_unix_ms, row);

CREATE TABLE keys (
    key_digest bytea PRIMARY KEY,
    principal_digest bytea NOT NULL,
    owner text NOT NULL,
    expires_at_unix_ms bigint NOT NULL,
    size_bytes bigint NOT NULL,
    is_awaited boolean NOT NULL DEFAULT false,
    record bytea NOT NULL,
    result bytea
);

COMMENT ON COLUMN keys.key_digest IS 'sha256 of principal, tool and idempotency key';
COMMENT ON COLUMN keys.result IS 'null while the call runs';

CREATE INDEX keys_expiring ON keys (expires_at_unix_ms);

-- Of each principal, and of all under the empty digest.
CREATE TABLE key_usage (
    principal_digest bytea PRIMARY KEY,
    keys bigint NOT NULL,
    size_bytes bigint NOT NULL
) WITH (fillfactor = 50);

CREATE FUNCTION count_keys() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    whose bytea := coalesce(NEW.principal_digest, OLD.principal_digest);
    more_keys bigint := CASE TG_OP WHEN 'INSERT' THEN 1 WHEN 'DELETE' THEN -1 ELSE 0 END;
    more_bytes bigint := coalesce(NEW.size_bytes, 0) - coalesce(OLD.size_bytes, 0);
BEGIN
    INSERT INTO key_usage AS usage VALUES ('', more_keys, more_bytes), (whose, more_keys, more_bytes)
    ON CONFLICT (principal_digest) DO UPDATE
        SET keys = usage.keys + excluded.keys, size_bytes = usage.size_bytes + excluded.size_bytes;
    DELETE FROM key_usage WHERE principal_digest = whose AND keys = 0;
    RETURN NULL;
END $$;

CREATE TRIGGER keys_counted AFTER INSERT OR DELETE OR UPDATE OF size_bytes ON keys
FOR EACH ROW EXECUTE FUNCTION count_keys();

CREATE TABLE counts (
    limit_digest bytea PRIMARY KEY,
    full_at_s double precision,
    opened_at_s double precision,
    used bigint,
    idle_at_s double precision NOT NULL
) WITH (fillfactor = 50);

COMMENT ON COLUMN counts.full_at_s IS 'when the bucket of the rate is full again';
COMMENT ON COLUMN counts.opened_at_s IS 'of the window of the quota';
COMMENT ON COLUMN counts.idle_at_s IS 'when a new row would say the same';
