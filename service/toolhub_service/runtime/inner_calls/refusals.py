"""Inner calls that need an approval or a plan and cannot come back with one.

The caller of an inner call is a program, a sub-agent or a skill that runs: it has no way to send the call again with an
approval_id or a plan_digest. No approval is requested for it, because a person would decide about a call that is never
made. Only calls that a job's log keeps wait for a person (`runtime/inner_calls/log.py`).
"""

from __future__ import annotations

from msgspec import structs

from toolhub_service.domain.call import Call, Lineage, Mode
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.ports import Catalog
from toolhub_service.domain.verdict import Effect, Verdict


def can_wait(call: Call) -> bool:
    """Return whether an approval can reach the call: of a caller, of a job, or kept in a job's log."""
    return call.lineage is None or call.lineage.is_kept or bool(call.job_id) or call.mode is not Mode.EXECUTE


def verdict_within(call: Call, verdict: Verdict, catalog: Catalog) -> Verdict:
    """Return the verdict on an inner call, whose refusal says what can be done instead."""
    lineage = call.lineage
    if lineage is None or call.mode is not Mode.EXECUTE:
        return verdict
    outer = _outer_tool(lineage)
    if verdict.effect is Effect.REQUIRE_PLAN:
        remedy = (
            f"A call within {outer} cannot show a plan first. Make this call yourself, not within {outer}: with mode "
            "DRY_RUN, then with the plan_digest of the plan."
        )
        return structs.replace(verdict, remedy=remedy)
    if verdict.effect is not Effect.REQUIRE_APPROVAL or can_wait(call):
        return verdict
    remedy = what_to_do(lineage, catalog)
    return structs.replace(verdict, effect=Effect.DENY, kind=ErrorKind.APPROVAL_REQUIRED, remedy=remedy)


def what_to_do(lineage: Lineage, catalog: Catalog) -> str:
    """Return the advice for an inner call that needs a person and cannot wait for one."""
    outer = _outer_tool(lineage)
    spec = catalog.get(outer)
    cannot = f"A call within {outer} cannot wait for a person."
    if spec is not None and spec.replays and not lineage.job_id:
        return (
            f"{cannot} Submit {outer} as a job with the same arguments (SubmitJob; over MCP `job_start`; on the "
            "command line `--job`): a job waits for each approval, and goes on by itself."
        )
    return f"{cannot} Make this call yourself, not within {outer}, and wait for its approval."


def _outer_tool(lineage: Lineage) -> str:
    return lineage.ancestors[0][0] if lineage.ancestors else "another call"
