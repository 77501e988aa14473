-- Callers' own credentials of sources, sealed under a key that is not here.

CREATE TABLE IF NOT EXISTS credentials (
    credential_id text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    owner text NOT NULL,
    source text COLLATE "C" NOT NULL,
    changed_at_unix_ms bigint NOT NULL,
    record bytea NOT NULL
);

CREATE INDEX IF NOT EXISTS credentials_by_time ON credentials (changed_at_unix_ms, credential_id);
CREATE INDEX IF NOT EXISTS credentials_by_owner ON credentials USING hash (owner);
