"""The skills of one source: folders that are read periodically, and commits that never change.

A skill that cannot be loaded makes the source PARTIAL; one that only breaks a rule is listed in its diagnostics. A
folder is read again when times or sizes in it change; every call also verifies the bytes that it uses against their
digests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from toolhub_service.adapters.definitions import Overrides, SourceTerms, limit_problems
from toolhub_service.adapters.skill.checkout import Checkouts
from toolhub_service.adapters.skill.definitions import DefinitionMaker, SkillTool
from toolhub_service.adapters.skill.kind import SkillEntry, SkillSource, endpoint_of, place_of, trust_of
from toolhub_service.adapters.skill.manifest import Manifest
from toolhub_service.adapters.skill.skill import Skill, load_skill, remarks_of, skill_folders
from toolhub_service.adapters.skill.skill_file import SkillInvalid
from toolhub_service.adapters.skill.tree import LIMITS, TreeLimits, show_path, stamp_of
from toolhub_service.adapters.tool_names import Unnamed
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.source import Definition, Discovery
from toolhub_service.domain.tool import ToolKind
from toolhub_service.guards.secrets import Redact
from toolhub_service.registry.names import skeleton

SKILLS_MAX: Final = 500
"""Limit per source."""
POLL_S: Final = 5.0


class Loaded(NamedTuple):
    """The result of one reading of a source's places."""

    skills: tuple[Skill, ...]
    problems: tuple[str, ...]
    """Why folders are no skills, a sentence each."""


class RunnableHere(Protocol):
    """What of skills can be run on this machine."""

    async def examine(self) -> str:
        """Return why scripts cannot start on this machine, with what to do, for operators; empty: they can.

        `unavailable` knows it from then on.
        """

    def unavailable(self, manifest: Manifest) -> str:
        """Return why skills of its mode cannot be run on this machine, for callers; empty: they can."""


class SkillToolSource:
    """Implements `ToolSource`."""

    kind = ToolKind.SKILL

    def __init__(
        self,
        name: str,
        entry: SkillSource,
        checkouts: Checkouts,
        *,
        redact: Redact,
        runner: RunnableHere | None = None,
        limits: TreeLimits = LIMITS,
        poll_s: float = POLL_S,
    ) -> None:
        """`runner`: what can be run on this machine; None: skills are only read. `poll_s`: between two checks whether a
        folder has changed. Raises ValueError when an `error_pattern` is no regular expression."""
        self.name = name
        self.trust = trust_of(entry)
        self._entry = entry
        self._checkouts = checkouts
        self._redact = redact
        self._runner = runner
        self._limits = limits
        self._poll_s = poll_s
        self._terms = SourceTerms.of(self.kind, name, endpoint_of(entry), entry)
        self._maker = DefinitionMaker(self._terms, Overrides(entry.tools))
        self._changed: Callable[[], None] = lambda: None
        self._watching: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()
        self._is_closed = False
        self._tools: Mapping[str, SkillTool] = {}
        self._known: dict[Path, tuple[str, Skill | str]] = {}
        self._stamps: dict[Path, str] = {}
        self._remarks: tuple[str, ...] = ()

    @property
    def endpoint(self) -> str:
        return self._terms.endpoint

    async def discover(self) -> Discovery:
        async with self._reading:
            if self._is_closed:
                raise refuse(ErrorKind.TOOL_UNAVAILABLE, f"The source {self.name} has been closed.", retryable=False)
            places, problems = await self._places()
            loaded = await asyncio.to_thread(self._load, places)
            problems += loaded.problems
            if problems and not loaded.skills:
                raise refuse(ErrorKind.TOOL_UNAVAILABLE, self._redact(" ".join(problems)[:500]))
            why = await self._examine_scripts(loaded.skills)
            definitions = self._definitions(loaded.skills, problems)
            self._remarks = (
                *([f"Scripts of skills cannot run here: {why}"] if why else []),
                *remarks_of(loaded.skills),
            )
            return Discovery(definitions, limit_problems([self._redact(problem) for problem in problems]))

    def listen(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def diagnostics(self) -> Sequence[str]:
        return tuple(map(self._redact, self._remarks))

    async def start(self) -> None:
        if any(not entry.git for entry in self._entry.skills):
            self._watching = asyncio.create_task(self._watch_folders(), name=f"skills:{self.name}")

    async def close(self) -> None:
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})

    def tool(self, resource_id: str) -> SkillTool | None:
        """Return the tool of a definition from this reading or the one before."""
        return self._tools.get(resource_id)

    def note_change(self) -> None:
        """Have the source read again, because a call has found bytes that do not match their digest."""
        self._known.clear()
        self._changed()

    async def _examine_scripts(self, skills: Sequence[Skill]) -> str:
        """Return why their scripts cannot run here; empty: they can, or none has a sidecar."""
        if self._runner is None or not any(skill.sidecar is not None for skill in skills):
            return ""
        return await self._runner.examine()

    async def _places(self) -> tuple[list[tuple[SkillEntry, Path]], list[str]]:
        """Return folders of this machine, and why others are missing."""
        places: list[tuple[SkillEntry, Path]] = []
        problems: list[str] = []
        for entry in self._entry.skills:
            if not entry.git:
                places.append((entry, Path(entry.path)))
                continue
            try:
                places.append((entry, await self._checkouts.folder_of(entry)))
            except ToolFailure as failure:
                problems.append(f"{place_of(entry)}: {failure.error.message}")
        return places, problems

    def _load(self, places: Iterable[tuple[SkillEntry, Path]]) -> Loaded:
        """Load the skills. Runs in a thread."""
        skills: list[Skill] = []
        problems: list[str] = []
        known: dict[Path, tuple[str, Skill | str]] = {}
        for entry, place in places:
            folders = [*skill_folders(place)] if place.is_dir() else []
            if not folders:
                why = (
                    "there is no skill in it: a folder with a SKILL.md" if place.is_dir() else "there is no such folder"
                )
                problems.append(f"{place_of(entry)}: {why}.")
            for folder in folders:
                if len(known) >= SKILLS_MAX:
                    problems.append(f"Only the first {SKILLS_MAX} skills are offered.")
                    break
                known[folder] = self._load_folder(folder)
                found = known[folder][1]
                if isinstance(found, str):
                    problems.append(f"{place_of(entry)}: {show_path(folder.name)} was left out: {found}.")
                else:
                    skills.append(found)
        self._known = known
        self._stamps = {folder: stamp for folder, (stamp, _) in known.items()}
        return Loaded(tuple(skills), tuple(problems))

    def _load_folder(self, folder: Path) -> tuple[str, Skill | str]:
        """Return the stamp of a folder, and its skill or why there is none; reused while the stamp stays the same."""
        stamp = stamp_of(folder, self._limits)
        before = self._known.get(folder)
        if before is not None and before[0] == stamp:
            return before
        try:
            return stamp, load_skill(folder, self._limits)
        except SkillInvalid as invalid:
            return stamp, str(invalid)

    def _definitions(self, skills: Sequence[Skill], problems: list[str]) -> tuple[Definition, ...]:
        """Return the tools; of two whose names look alike only the first, in the order of `skills`."""
        unique: dict[str, Definition] = {}
        tools: dict[str, SkillTool] = {}
        for skill in skills:
            try:
                found = [*self._of(skill)]
            except Unnamed as unnamed:
                problems.append(unnamed.problem)
                continue
            twins = [unique[key] for definition, _ in found if (key := skeleton(definition.spec.name)) in unique]
            if twins:
                problems.append(
                    f"{show_path(skill.folder.name)} was left out: its name is too similar to that of "
                    f"`{twins[0].spec.name}`."
                )
                continue
            for definition, tool in found:
                unique[skeleton(definition.spec.name)] = definition
                tools[definition.spec.resource_id] = tool
        self._tools = tools
        return tuple(unique.values())

    def _of(self, skill: Skill) -> Iterator[tuple[Definition, SkillTool]]:
        running = None if self._runner is None else self._maker.running(skill, self._runner.unavailable)
        runs_as = ""
        if running is not None:
            definition, manifest = running
            runs_as = "" if definition.problem else definition.spec.name
            yield definition, SkillTool(skill, manifest, runs_as)
        reading = self._maker.reading(skill)
        if reading is not None:
            yield reading, SkillTool(skill, None, runs_as)

    async def _watch_folders(self) -> None:
        """Poll the folders, and have the source read again when one has changed; only then an added one is noticed."""
        while True:
            await asyncio.sleep(self._poll_s)
            if await asyncio.to_thread(self._has_other_stamps):
                self._changed()
                self._stamps = {}  # until it has been read

    def _has_other_stamps(self) -> bool:
        return any(stamp_of(folder, self._limits) != stamp for folder, stamp in self._stamps.items())
