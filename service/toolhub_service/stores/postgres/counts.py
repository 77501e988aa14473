"""Rate and quota in PostgreSQL, counted by all hubs of one schema together: the same sums as budget/limits.py.

One statement counts a call in all its limits, or in none. The server's clock is used, so that the clocks of the hubs
need not agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from toolhub_service.domain.ports import Clock
from toolhub_service.domain.verdict import ExhaustedLimit, Limit, Refused, Taken
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.writer import TableWriter

_NOW_S: Final = "coalesce(%(now)s::float8, extract(epoch FROM statement_timestamp())::float8)"
_TAKE: Final = f"""
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(%(digests)s::bytea[], %(intervals)s::float8[], %(slacks)s::float8[], %(quotas)s::bigint[],
        %(windows)s::float8[]) WITH ORDINALITY AS given (limit_digest, interval_s, slack_s, quota, window_s, place)),
standing AS MATERIALIZED (
    SELECT given.*, now_s, coalesce(full_at_s, 0) AS full_at_s,
        CASE WHEN is_open THEN opened_at_s ELSE now_s END AS opened_at_s, CASE WHEN is_open THEN used ELSE 0 END AS used
    FROM given CROSS JOIN (SELECT {_NOW_S} AS now_s) AS clock LEFT JOIN counts USING (limit_digest)
    CROSS JOIN LATERAL (SELECT coalesce(now_s - opened_at_s < window_s, false) AS is_open) AS of_quota),
refused AS MATERIALIZED (
    SELECT place, scarce, wait_s FROM standing CROSS JOIN LATERAL (
        SELECT 'rate' AS scarce, full_at_s - slack_s - now_s AS wait_s
        WHERE interval_s IS NOT NULL AND full_at_s - slack_s - now_s > 1e-6
        UNION ALL SELECT 'quota', opened_at_s + window_s - now_s WHERE used >= quota) AS found
    ORDER BY place, scarce DESC LIMIT 1),
spent AS (
    INSERT INTO counts
    SELECT limit_digest, greatest(now_s, full_at_s) + interval_s,
        CASE WHEN quota IS NOT NULL THEN opened_at_s END, CASE WHEN quota IS NOT NULL THEN used + 1 END,
        greatest(now_s, greatest(now_s, full_at_s) + interval_s,
            CASE WHEN quota IS NOT NULL THEN opened_at_s + window_s END)
    FROM standing WHERE %(spend)s AND NOT EXISTS (SELECT FROM refused)
    ON CONFLICT (limit_digest) DO UPDATE SET full_at_s = excluded.full_at_s, opened_at_s = excluded.opened_at_s,
        used = excluded.used, idle_at_s = excluded.idle_at_s)
SELECT refused.*, (SELECT array_agg(CASE WHEN quota IS NOT NULL THEN opened_at_s END ORDER BY place) FROM standing)
FROM (SELECT 1) AS one LEFT JOIN refused ON TRUE"""  # noqa: S608 — fixed text
_GIVE_BACK: Final = """
UPDATE counts SET full_at_s = coalesce(full_at_s - interval_s, full_at_s),
    used = used - coalesce((counts.opened_at_s = given.opened_at_s)::integer, 0)
FROM unnest(%(digests)s::bytea[], %(intervals)s::float8[], %(opened)s::float8[])
    AS given (limit_digest, interval_s, opened_at_s)
WHERE counts.limit_digest = given.limit_digest RETURNING 1"""
_FORGET_IDLE: Final = f"DELETE FROM counts WHERE idle_at_s < {_NOW_S} RETURNING 1"  # noqa: S608 — fixed text
# Calls of `take` between two searches for idle limits: each search reads the whole table.
_FORGET_EVERY: Final = 1_000


class PostgresCounts:
    """Implements `SharedCounts`. The link is started by its owner."""

    def __init__(self, link: PostgresLink, clock: Clock | None = None) -> None:
        """`clock` None: the server's clock."""
        self._clock = clock
        self._writer = TableWriter(link, "counts", is_durable=False)
        self._taken = 0

    async def take(self, limits: Sequence[Limit], *, spend: bool = True) -> Taken | Refused:
        spent = tuple({limit.id: limit for limit in limits if limit.rate_per_s or limit.quota is not None}.values())
        if not spent:
            return Taken()
        terms = {
            "digests": [_limit_digest(limit) for limit in spent],
            "intervals": [_interval_s(limit) for limit in spent],
            "slacks": [(limit.burst - 1) / limit.rate_per_s if limit.rate_per_s else None for limit in spent],
            "quotas": [limit.quota for limit in spent],
            "windows": [float(limit.quota_window_s) for limit in spent],
            "now": None if self._clock is None else self._clock.unix_ms() / 1_000,
            "spend": spend,
        }
        self._taken += 1
        if self._taken % _FORGET_EVERY == 0:
            await self._writer.run(_FORGET_IDLE, terms)
        ((place, scarce, wait_s, opened_at_s),) = await self._writer.run(_TAKE, terms)
        if place:
            return Refused(spent[place - 1], ExhaustedLimit(scarce), wait_s)
        if not spend:
            return Taken()
        return Taken(spent, tuple(b"" if at_s is None else repr(at_s).encode() for at_s in opened_at_s))

    async def give_back(self, taken: Taken) -> None:
        if taken.limits:
            terms = {
                "digests": [_limit_digest(limit) for limit in taken.limits],
                "intervals": [_interval_s(limit) for limit in taken.limits],
                "opened": [float(mark) if mark else None for mark in taken.marks],
            }
            await self._writer.run(_GIVE_BACK, terms)


def _interval_s(limit: Limit) -> float | None:
    """Return the interval between two calls; None without a rate."""
    return 1 / limit.rate_per_s if limit.rate_per_s else None


def _limit_digest(limit: Limit) -> bytes:
    return hashlib.sha256(limit.id.encode()).digest()
