"""A skill that can be called: its sidecar, checked against the files of its tree and what its SKILL.md allows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

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
    made = Runnable(skill, manifest, plan, _wanted(manifest), allowed, warnings)
    shut_out = [name for name in _tools_of_steps(manifest) if not made.may_call(name)]
    if shut_out:
        warning = (
            f"Steps call {', '.join(shut_out[:5])}, which `allowed-tools` or `tools` leaves out: they will be refused."
        )
        made = replace(made, warnings=(*warnings, warning))
    return made


def _wanted(manifest: Manifest) -> tuple[str, ...]:
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


# The meaning of `allowed-tools` in a SKILL.md: it narrows what the skill's calls may use, and grants nothing.
#
# Its words are those of one client, whose tools have their own names; a few of them have an obvious counterpart in the
# hub. Full names and globs of the hub are used unchanged. Any other word allows nothing and causes a warning.

_COUNTERPARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Read": ("core/fs.readText", "core/fs.stat"),
    "NotebookRead": ("core/fs.readText",),
    "LS": ("core/fs.listDir", "core/fs.stat"),
    "Glob": ("core/fs.findFiles",),
    "Grep": ("core/fs.searchText",),
    "Write": ("core/fs.writeText",),
    "Edit": ("core/fs.editText",),
    "MultiEdit": ("core/fs.editText",),
    "WebFetch": ("core/web.fetch", "core/http.fetchText", "core/http.fetchJson", "core/http.head"),
    "WebSearch": ("core/web.search",),
}
_LIMITED: Final = re.compile(r"^([A-Za-z]+)\((.*)\)$")
_MCP: Final = re.compile(r"^mcp__([a-z0-9][a-z0-9_-]*?)(?:__([A-Za-z0-9_.*-]+))?$")
_OURS: Final = re.compile(r"^[a-z0-9*][a-z0-9_*?-]*/[A-Za-z0-9_.*?-]+$")
_SHOWN_CHARS: Final = 80


def allowed_globs(words: Sequence[str]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return globs over full names, None where nothing is declared, and a sentence about each word that allows
    nothing."""
    if not words:
        return None, ()
    globs: dict[str, None] = {}
    warnings: list[str] = []
    for word in words:
        found = _globs(word)
        globs |= dict.fromkeys(found)
        if not found:
            warnings.append(_warning(word))
    return tuple(globs), tuple(warnings)


def is_allowed(name: str, wanted: Sequence[str], allowed: Sequence[str] | None) -> bool:
    """Return whether the sidecar wants a tool and SKILL.md, if it restricts tools, allows it."""
    if not any(fnmatchcase(name, glob) for glob in wanted):
        return False
    return allowed is None or any(fnmatchcase(name, glob) for glob in allowed)


def _globs(word: str) -> tuple[str, ...]:
    if word in _COUNTERPARTS:
        return _COUNTERPARTS[word]
    if _OURS.match(word):
        return (word,)
    if remote := _MCP.match(word):
        return (f"{remote[1]}/{remote[2] or '*'}",)
    return ()


def _warning(word: str) -> str:
    shown = word if len(word) <= _SHOWN_CHARS and word.isprintable() else f"{ascii(word[:_SHOWN_CHARS])[1:-1]}…"
    if limited := _LIMITED.match(word):
        name = limited[1]
        if name in _COUNTERPARTS:
            tools = ", ".join(_COUNTERPARTS[name])
            return (
                f"`allowed-tools` has `{shown}`, which allows nothing here: limits in parentheses are a matter of the "
                f"policy. Write {tools}, and limit them there."
            )
        if name == "Bash":
            return (
                f"`allowed-tools` has `{shown}`, which allows nothing here: write core/exec.run, and name the command "
                "in the policy."
            )
    return f"`allowed-tools` has `{shown}`, which is no tool of this hub and allows nothing; write full names or globs."
