-- Keys that all hubs of this schema seal with.

CREATE TABLE IF NOT EXISTS shared_keys (
    name text COLLATE "C" PRIMARY KEY,
    key bytea NOT NULL
);
