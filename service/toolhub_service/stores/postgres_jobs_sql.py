"""What the job store says to PostgreSQL: a group of changes is one statement, and so one transaction.

Rows are locked in the order of their ids, so that two groups never wait for one another in a circle.
"""

from __future__ import annotations

from typing import Final

WHOLE: Final = "SELECT jobs.frame, job_entries.status, jobs.args FROM jobs JOIN job_entries USING (job_id, sequence)"

CREATE: Final = """
WITH given AS (
    SELECT * FROM unnest(
        %b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::bool[], %b::text[], %b::bigint[], %b::bigint[],
        %b::bigint[], %b::bytea[], %b::bytea[],
        %b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bytea[], %b::bytea[]
    ) AS given (job_id, version, sequence, state, is_final, runner, entered_at_unix_ms, deadline_unix_ms,
        expires_at_unix_ms, frame, status,
        created_at_unix_ms, principal, tool, request_id, task_id, key_digest, args)),
kept AS (
    INSERT INTO jobs (job_id, version, sequence, state, is_final, runner, entered_at_unix_ms, deadline_unix_ms,
        expires_at_unix_ms, frame, created_at_unix_ms, principal, tool, request_id, task_id, key_digest, args)
    SELECT job_id, version, sequence, state, is_final, runner, entered_at_unix_ms, deadline_unix_ms,
        expires_at_unix_ms, frame, created_at_unix_ms, principal, tool, request_id, task_id, key_digest, args
    FROM given ORDER BY key_digest, job_id
    ON CONFLICT DO NOTHING
    RETURNING job_id),
appended AS (
    INSERT INTO job_entries (job_id, sequence, status)
    SELECT job_id, sequence, status FROM given JOIN kept USING (job_id))
SELECT job_id, pg_notify(%b, job_id || ' ' || sequence || ' ' || %b) FROM given JOIN kept USING (job_id)"""

PUT: Final = """
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(
        %b::text[], %b::bigint[], %b::bigint[], %b::text[], %b::bool[], %b::text[], %b::bigint[], %b::bigint[],
        %b::bigint[], %b::bytea[], %b::bytea[], %b::text[]
    ) AS given (job_id, version, sequence, state, is_final, runner, entered_at_unix_ms, deadline_unix_ms,
        expires_at_unix_ms, frame, status, may_follow)),
standing AS MATERIALIZED (
    SELECT given.*, jobs.version AS standing_version, jobs.sequence AS standing_sequence, jobs.state AS standing_state
    FROM given JOIN jobs ON jobs.job_id = given.job_id
    ORDER BY jobs.job_id FOR UPDATE OF jobs),
changed AS (
    UPDATE jobs SET version = s.version, sequence = s.sequence, state = s.state, is_final = s.is_final,
        runner = s.runner, entered_at_unix_ms = s.entered_at_unix_ms, deadline_unix_ms = s.deadline_unix_ms,
        expires_at_unix_ms = s.expires_at_unix_ms, frame = s.frame,
        args = CASE WHEN s.is_final THEN '{}'::bytea ELSE jobs.args END
    FROM standing s
    WHERE jobs.job_id = s.job_id AND s.standing_version = s.version - 1 AND (s.sequence = s.standing_sequence
        OR (s.sequence = s.standing_sequence + 1 AND s.standing_state = ANY (string_to_array(s.may_follow, ' '))))
    RETURNING s.job_id, s.sequence, s.status, s.sequence > s.standing_sequence AS is_new),
appended AS (
    INSERT INTO job_entries (job_id, sequence, status) SELECT job_id, sequence, status FROM changed WHERE is_new)
SELECT job_id, NULL, is_new,
    CASE WHEN is_new THEN pg_notify(%b, job_id || ' ' || sequence || ' ' || %b) END FROM changed
UNION ALL
SELECT job_id, standing_version, NULL, NULL FROM standing"""
"""Each job that was changed, and whether its entry is new; then each that stood, with its version before.

No join but by the key of `jobs`, so that the plan fits a group of any size.
"""

STANDING: Final = """
SELECT job_id, key_digest, jobs.frame, job_entries.status, jobs.args FROM jobs JOIN job_entries USING (job_id, sequence)
WHERE job_id = ANY (%b) OR key_digest = ANY (%b)"""

HISTORY: Final = "SELECT status FROM job_entries WHERE job_id = %s AND sequence > %s ORDER BY sequence LIMIT %s"

UNATTENDED: Final = f"""{WHOLE}
WHERE NOT is_final AND state <> 'AWAITING_APPROVAL' AND (deadline_unix_ms <= %(now)s
    OR (state = 'QUEUED' AND entered_at_unix_ms < %(queued_before)s)
    OR (state IN ('RUNNING', 'CANCELLING') AND NOT EXISTS (
        SELECT FROM runners WHERE runners.runner = jobs.runner AND alive_until_unix_ms > %(now)s)))
ORDER BY state = 'QUEUED', entered_at_unix_ms, job_id LIMIT %(limit)s"""

AWAITING: Final = f"""{WHOLE}
WHERE NOT is_final AND state = 'AWAITING_APPROVAL' AND (entered_at_unix_ms, job_id) > (%s, %s)
ORDER BY entered_at_unix_ms, job_id LIMIT %s"""

BEAT: Final = """
INSERT INTO runners VALUES (%s, %s)
ON CONFLICT (runner) DO UPDATE SET alive_until_unix_ms = excluded.alive_until_unix_ms"""
LEFT: Final = "DELETE FROM runners WHERE runner = %s"
IS_ALIVE: Final = "SELECT 1 FROM runners WHERE runner = %s AND alive_until_unix_ms > %s"

FORGET: Final = """
WITH expired AS (
    SELECT job_id FROM jobs WHERE is_final AND expires_at_unix_ms BETWEEN 1 AND %(now)s
    ORDER BY expires_at_unix_ms LIMIT %(limit)s FOR UPDATE SKIP LOCKED),
entries AS (DELETE FROM job_entries USING expired WHERE job_entries.job_id = expired.job_id),
dead AS (DELETE FROM runners WHERE alive_until_unix_ms <= %(now)s)
DELETE FROM jobs USING expired WHERE jobs.job_id = expired.job_id"""

TALLY: Final = """
SELECT state, count(*), (array_agg(created_at_unix_ms ORDER BY entered_at_unix_ms, created_at_unix_ms))[1]
FROM jobs WHERE NOT is_final GROUP BY state"""

TOOLS: Final = """
WITH RECURSIVE tools AS (
    (SELECT tool FROM jobs ORDER BY tool LIMIT 1)
    UNION ALL
    SELECT (SELECT jobs.tool FROM jobs WHERE jobs.tool > tools.tool ORDER BY jobs.tool LIMIT 1)
    FROM tools WHERE tools.tool IS NOT NULL)
SELECT tool FROM tools WHERE tool IS NOT NULL"""
"""From tool to tool along the index, instead of over all jobs."""
