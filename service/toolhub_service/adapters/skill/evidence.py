"""Evidence of a skill's run: what the hub observed and counted, never what the skill reports about itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from toolhub_service.adapters.skill.call_door import MadeCall
from toolhub_service.adapters.skill.plan.engine import PlanCall
from toolhub_service.adapters.skill.runnable import Runnable
from toolhub_service.adapters.skill.script import ScriptRun
from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.result import Evidence, EvidenceType
from toolhub_service.schema.repaired_json import repair_evidence

_CALLS_SHOWN_MAX: Final = 100
_STEPS_MAX: Final = 200
_WORDS_MAX_CHARS: Final = 500


def of_skill(made: Runnable) -> Evidence:
    """Return the skill's version and the digest of its whole tree, which was verified before it ran."""
    name, manifest = made.skill.name, made.manifest
    return Evidence(
        EvidenceType.FILE,
        f"skill:{name}",
        f"The skill {name} {manifest.version}, mode {manifest.mode}, {len(made.skill.files)} files.",
        sha256=made.skill.digest,
        attributes={"version": manifest.version, "mode": manifest.mode},
    )


def of_script(made: Runnable, run: ScriptRun) -> Iterator[Evidence]:
    finished = run.finished
    yield Evidence(
        EvidenceType.TOOL,
        f"script:{made.skill.name}",
        f"It ran for {finished.duration_s:.2f} s and ended with exit code {finished.exit_code}.",
        sha256=finished.stdout.sha256,
        attributes={
            "argv": " ".join(run.argv)[:_WORDS_MAX_CHARS],
            "interpreter": run.interpreter,
            "exit_code": str(finished.exit_code),
            "duration_ms": str(round(finished.duration_s * 1_000)),
            "stdout_bytes": str(finished.stdout.total_bytes),
            "stderr_bytes": str(finished.stderr.total_bytes),
            "stderr_sha256": finished.stderr.sha256,
            "cpu_ms": str(round(finished.cpu_s * 1_000)),
            "memory_max_bytes": str(finished.memory_max_bytes),
            **run.confinement,
        },
    )
    yield from repair_evidence(f"script:{made.skill.name}", run.repairs)
    yield from map(_of_artifact, run.artifacts)
    if made.makes_calls:
        yield _of_calls(made, run.calls)


def of_plan(calls: Sequence[PlanCall]) -> Iterator[Evidence]:
    """Yield one item per step."""
    steps: dict[tuple[str, str, bool], list[PlanCall]] = {}
    for call in calls:
        steps.setdefault((call.step, call.tool, call.undoes), []).append(call)
    for (step, tool, undoes), made in [*steps.items()][:_STEPS_MAX]:
        failed = sum(not call.ok for call in made)
        what = "undone by" if undoes else "called"
        yield Evidence(
            EvidenceType.TOOL,
            f"step:{step}",
            f"{what} {tool}: {len(made)} calls, {failed} failed.",
            attributes=_ids([call.call_id for call in made]),
        )


def _of_calls(made: Runnable, calls: Sequence[MadeCall]) -> Evidence:
    failed = sum(not call.ok for call in calls)
    return Evidence(
        EvidenceType.TOOL,
        f"calls:{made.skill.name}",
        f"It made {len(calls)} calls of tools, of which {failed} failed.",
        attributes=_ids([call.call_id for call in calls]),
    )


def _of_artifact(ref: ArtifactRef) -> Evidence:
    return Evidence(
        EvidenceType.FILE,
        f"artifact:{ref.artifact_id}",
        f"It left {ref.name or 'a file'} of {ref.size_bytes} bytes.",
        sha256=ref.sha256,
        attributes={"media_type": ref.media_type},
    )


def _ids(ids: Sequence[str]) -> Mapping[str, str]:
    return {"calls": str(len(ids)), "call_ids": " ".join(ids[:_CALLS_SHOWN_MAX])}
