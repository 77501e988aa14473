-- What agents remember: kept here with `stores.kind: postgres`.
--
-- Terms are digests of a scope and a word, signed 64 bits; what removes an item removes its postings with it.

CREATE TABLE memory_items (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    item_id text COLLATE "C" NOT NULL UNIQUE,
    owner text NOT NULL,
    expires_at_unix_ms bigint NOT NULL,
    terms bigint[] NOT NULL,
    record bytea NOT NULL
);

COMMENT ON COLUMN memory_items.expires_at_unix_ms IS '0: never';

CREATE INDEX memory_items_expiring ON memory_items (expires_at_unix_ms) WHERE expires_at_unix_ms > 0;

CREATE TABLE memory_postings (
    term bigint NOT NULL,
    number bigint NOT NULL,
    weight integer NOT NULL,
    PRIMARY KEY (term, number) INCLUDE (weight)
);

CREATE TABLE memory_terms (
    term bigint PRIMARY KEY,
    items bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE memory_usage (
    owner text PRIMARY KEY,
    items bigint NOT NULL,
    size_bytes bigint NOT NULL
) WITH (fillfactor = 50);
