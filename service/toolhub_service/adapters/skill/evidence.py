"""What is proven of a run of a skill: by what the hub saw and counted, never by what the skill says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from toolhub_service.domain.artifact import ArtifactRef
from toolhub_service.domain.result import Evidence, EvidenceType

if TYPE_CHECKING:
    from toolhub_service.adapters.skill.inner_socket import MadeCall
    from toolhub_service.adapters.skill.plan import PlanCall
    from toolhub_service.adapters.skill.runnable import Runnable
    from toolhub_service.adapters.skill.script import ScriptRun

_CALLS_SHOWN_MAX: Final = 100
_STEPS_MAX: Final = 200
_WORDS_MAX_CHARS: Final = 500


def of_skill(made: Runnable) -> Evidence:
    """Which skill it was: its version and the digest of its whole tree, to which it was held before it ran."""
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
    yield from map(_of_artifact, run.artifacts)
    if made.makes_calls:
        yield _of_calls(made, run.calls, run.refused_peers)


def of_plan(calls: Sequence[PlanCall]) -> Iterator[Evidence]:
    """One a step."""
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


def _of_calls(made: Runnable, calls: Sequence[MadeCall], refused_peers: int) -> Evidence:
    failed = sum(not call.ok for call in calls)
    return Evidence(
        EvidenceType.TOOL,
        f"calls:{made.skill.name}",
        f"It made {len(calls)} calls of tools, of which {failed} failed.",
        attributes={**_ids([call.call_id for call in calls]), "refused_peers": str(refused_peers)},
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
