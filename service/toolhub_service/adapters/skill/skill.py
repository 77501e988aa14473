"""One skill, loaded from its folder: its instructions, its files, and the sidecar that makes it runnable.

Loading a skill runs nothing of it and needs neither a hub nor a network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from toolhub_service.adapters.skill.manifest import MANIFEST_MAX_BYTES, MANIFEST_NAME
from toolhub_service.adapters.skill.skill_file import (
    FILE_MAX_BYTES,
    FILE_NAMES,
    SkillFile,
    SkillInvalid,
    read_skill_file,
)
from toolhub_service.adapters.skill.tree import (
    LIMITS,
    Tree,
    TreeChanged,
    TreeFile,
    TreeLimits,
    TreeRefused,
    read_file,
    read_tree,
    show_path,
)

SIDECAR_KEY: Final = "toolhub.manifest"
"""Key in the frontmatter's `metadata`: the path of the sidecar, where it is another."""
_REMARKS_MAX: Final = 100
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill at the time when its tree was digested. All of it is untrusted."""

    name: str
    """Name in the hub: one word of letters, digits, `_` and `-`."""
    folder: Path
    """Absolute. Later reads must be verified against `tree` (`tree.read_file`, `tree.copy_tree`)."""
    tree: Tree
    file: SkillFile
    warnings: tuple[str, ...] = ()
    """Problems that do not prevent its use, one sentence each."""
    sidecar: bytes | None = None
    """The bytes of its `toolhub.json`, as they were digested; None: it has none, and is instructions only."""
    sidecar_path: str = ""

    @property
    def digest(self) -> str:
        """Return the sha256 (hex) over its whole tree."""
        return self.tree.digest

    @property
    def files(self) -> tuple[TreeFile, ...]:
        return self.tree.files

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.file.metadata


def load_skill(folder: Path, limits: TreeLimits = LIMITS) -> Skill:
    """Return the skill in a folder. Blocks, so call it in a thread. Raises SkillInvalid, whose message is a sentence
    without the folder's own path."""
    try:
        tree = read_tree(folder, limits)
        file = next((tree.by_path[name] for name in FILE_NAMES if name in tree.by_path), None)
        if file is None:
            raise SkillInvalid(f"there is no {FILE_NAMES[0]}")
        words = read_skill_file(_bytes(folder, file, FILE_MAX_BYTES), folder.name)
        path, sidecar = _sidecar(folder, tree, words)
    except (TreeRefused, TreeChanged) as refused:
        raise SkillInvalid(str(refused)) from None
    except OSError as failed:
        raise SkillInvalid(f"it cannot be read: {failed.strerror}") from None
    name = hub_name(words.name)
    if not name:
        raise SkillInvalid("its `name` has no letter or digit that a tool's name may have")
    warnings = (*words.warnings, *_warnings(words, file, name))
    return Skill(
        name=name,
        folder=folder.absolute(),
        tree=tree,
        file=words,
        warnings=warnings,
        sidecar=sidecar,
        sidecar_path=path,
    )


def hub_name(name: str) -> str:
    """Return the hub's word for a skill of that name; empty when no character of it can be used."""
    word = _FOREIGN.sub("_", name)[: 2 * 64]
    return word.lstrip("-") if word.strip("_-") else ""


def skill_folders(place: Path, *, depth_max: int = 3, folders_max: int = 2_000) -> Iterator[Path]:
    """Yield the folder itself when it has a SKILL.md, else the folders below it that have one; none within a skill.
    Links are not followed, and names that begin with a dot are skipped."""
    waiting, looked = [(place, 0)], 0
    while waiting and looked < folders_max:
        folder, depth = waiting.pop()
        looked += 1
        if any((folder / name).is_file() for name in FILE_NAMES):
            yield folder
        elif depth < depth_max:
            waiting += ((below, depth + 1) for below in reversed(_folders(folder, folders_max)))


def remarks_of(skills: Iterable[Skill]) -> Iterator[str]:
    """Yield their warnings, each with the name of its skill; at most a hundred."""
    return islice((f"skill {skill.name}: {warning}" for skill in skills for warning in skill.warnings), _REMARKS_MAX)


def remarks_on(places: Iterable[Path]) -> Iterator[str]:
    """Yield the problems of the skills in these folders, a sentence each; reads them."""
    for place in places:
        for folder in skill_folders(place):
            try:
                yield from remarks_of([load_skill(folder)])
            except SkillInvalid as invalid:
                yield f"skill {show_path(folder.name)} is left out: {invalid}."


def _folders(folder: Path, most: int) -> list[Path]:
    found: list[Path] = []
    try:
        for below in folder.iterdir():
            if len(found) >= most:
                break
            if (
                not below.name.startswith(".")
                and below.name != "node_modules"
                and below.is_dir()
                and not below.is_symlink()
            ):
                found.append(below)
    except OSError:
        return []
    return sorted(found)


def _sidecar(folder: Path, tree: Tree, words: SkillFile) -> tuple[str, bytes | None]:
    named = words.metadata.get(SIDECAR_KEY, "")
    found = tree.find(named or MANIFEST_NAME)
    if found is None:
        if named:
            raise SkillInvalid(f"the sidecar {show_path(named)} that its metadata names is not there")
        return "", None
    return found.path, _bytes(folder, found, MANIFEST_MAX_BYTES)


def _bytes(folder: Path, file: TreeFile, max_bytes: int) -> bytes:
    if file.link:
        raise SkillInvalid(f"{show_path(file.path)} is a link: it must be a file")
    if file.size_bytes > max_bytes:
        raise SkillInvalid(f"{show_path(file.path)} has more than {max_bytes:,} bytes")
    return read_file(folder, file, max_bytes)


def _warnings(words: SkillFile, file: TreeFile, name: str) -> Iterator[str]:
    if file.path != FILE_NAMES[0]:
        yield f"The file is named `{file.path}`; the specification says `{FILE_NAMES[0]}`."
    if name != words.name:
        yield f"The hub calls it `{name}`, for its name has characters that a tool's name may not have."
