"""Results over their inline limit: the answer carries the cut value, and the whole is stored as an artifact beside it.

Awaited only when something was cut. The artifact is optional: when storing it fails or takes too long, the answer is
sent all the same, and its evidence says that the whole could not be stored and why.
"""

from __future__ import annotations

import asyncio
from math import inf

from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.call import Call
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.ports import CallObserver
from toolhub_service.domain.result import Evidence, EvidenceType, ToolResult
from toolhub_service.runtime.artifacts.service import Artifacts

# Longest wait for a store; the caller's own deadline may be nearer.
_KEEP_MAX_S = 20.0
# Errors of caps and quotas: expected, so operators need not see them.
_EXPECTED = frozenset({ErrorKind.FILE_TOO_LARGE, ErrorKind.BUDGET_EXCEEDED})


async def keep_whole(
    result: ToolResult, whole: bytes, call: Call, artifacts: Artifacts, observer: CallObserver
) -> ToolResult:
    """The cut result with the artifact of the whole, or with evidence of why there is none. Raises nothing but
    cancellation."""
    deadline_s = inf if call.deadline_s is None else call.deadline_s
    try:
        async with asyncio.timeout_at(min(deadline_s, asyncio.get_running_loop().time() + _KEEP_MAX_S)):
            return _with_artifact(result, await artifacts.keep_whole(call, whole))
    except ToolFailure as failure:
        if failure.error.kind not in _EXPECTED:
            observer.on_crash(call, failure)
        return _without(result, failure.error.kind)
    except TimeoutError as late:
        observer.on_crash(call, late)
        return _without(result, ErrorKind.TIMEOUT)
    except Exception as defect:  # noqa: BLE001 - an effect that was had is answered, also when its whole is not kept
        observer.on_crash(call, defect)
        return _without(result, ErrorKind.INTERNAL)


def _with_artifact(result: ToolResult, ref: ArtifactRef) -> ToolResult:
    *before, cut = result.evidence
    proof = cut._replace(summary=f"{cut.summary}; the whole is artifact {ref.artifact_id}")
    return result._replace(artifacts=(*result.artifacts, ref), evidence=(*before, proof))


def _without(result: ToolResult, why: ErrorKind) -> ToolResult:
    *_, cut = result.evidence
    notice = Evidence(
        EvidenceType.METRIC,
        "result",
        f"the whole result could not be kept as an artifact: {why.value}",
        created_at_unix_ms=cut.created_at_unix_ms,
    )
    return result._replace(evidence=(*result.evidence, notice))
