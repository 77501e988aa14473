"""A skill that can be called: its sidecar, checked against the files of its tree and what its SKILL.md allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from toolhub_service.adapters.skill.allowed_tools import allowed_globs, is_allowed
from toolhub_service.adapters.skill.manifest import PYTHON, SHELL, Manifest, ManifestInvalid, read_manifest
from toolhub_service.adapters.skill.plan.steps import CheckedPlan, check_plan
from toolhub_service.adapters.skill.skill import Skill


@dataclass(frozen=True, slots=True, eq=False)
class Runnable:
    """A complete, consistent skill. It is never changed."""

    skill: Skill
    manifest: Manifest
    plan: CheckedPlan | None
    """Set for mode `plan`."""
    wanted: tuple[str, ...]
    """Full names and globs of the tools that it calls."""
    allowed: tuple[str, ...] | None
    """What SKILL.md allows of them; None: all."""
    warnings: tuple[str, ...] = ()

    @property
    def makes_calls(self) -> bool:
        return bool(self.wanted)

    def may_call(self, name: str) -> bool:
        """Return whether the skill declares the use of a tool; the caller's rights are checked elsewhere."""
        return is_allowed(name, self.wanted, self.allowed)


def runnable(skill: Skill) -> Runnable | None:
    """Return the skill; None without a sidecar, when it can only be read. Raises ManifestInvalid with all problems of
    the sidecar."""
    if skill.sidecar is None:
        return None
    manifest = read_manifest(skill.sidecar)
    problems = [*_files_missing(manifest, skill)]
    plan = None
    if manifest.plan is not None:
        plan, wrong = check_plan(manifest)
        problems += wrong
    if problems:
        raise ManifestInvalid(*problems)
    allowed, warnings = allowed_globs(skill.file.allowed_tools)
    made = Runnable(skill, manifest, plan, _tools_to_call(manifest), allowed, warnings)
    shut_out = [name for name in _tools_of_steps(manifest) if not made.may_call(name)]
    if shut_out:
        warning = (
            f"Steps call {', '.join(shut_out[:5])}, which `allowed-tools` or `tools` leaves out: they will be refused."
        )
        made = replace(made, warnings=(*warnings, warning))
    return made


def _tools_to_call(manifest: Manifest) -> tuple[str, ...]:
    """Return the tools; without `tools` a plan calls those that its steps name."""
    return manifest.tools or tuple(dict.fromkeys(_tools_of_steps(manifest)))


def _tools_of_steps(manifest: Manifest) -> Iterator[str]:
    for step in manifest.plan.steps if manifest.plan is not None else ():
        yield step.tool
        if step.compensate is not None:
            yield step.compensate.tool


def _files_missing(manifest: Manifest, skill: Skill) -> Iterator[str]:
    missing = partial(_missing, skill)
    if manifest.entry is not None:
        first, *rest = manifest.entry.argv
        if first not in (PYTHON, SHELL):
            found = skill.tree.find(first)
            yield from missing("entry.argv[0]", first)
            if found is not None and not found.is_executable:
                yield f"entry.argv[0]: `{first[:80]}` is not executable; `chmod +x` it, or begin with `{PYTHON}`"
        elif rest and not rest[0].startswith("-"):
            yield from missing("entry.argv[1]", rest[0])
    if manifest.program is not None:
        yield from missing("program.file", manifest.program.file)


def _missing(skill: Skill, place: str, path: str) -> Iterator[str]:
    if skill.tree.find(path) is None:
        yield f"{place}: there is no file `{path[:80]}` in the skill"
