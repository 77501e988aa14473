"""Skills as a kind of source: its section of sources.yaml, its rules, and how it is opened."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from toolhub_service.adapters.source_kind import SourceKind
from toolhub_service.domain.source import Trust
from toolhub_service.domain.tool import ToolKind
from toolhub_service.sections.source_config import Section, Source, SourceInvalid

_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SCP: Final = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9][A-Za-z0-9.-]*:[A-Za-z0-9_.~/-]+")
_SCHEMES: Final = ("https", "ssh", "file")
_SHORT_CHARS: Final = 12
_ENDPOINT_MAX_CHARS: Final = 300


class SkillEntry(Section, frozen=True):
    path: Annotated[
        str,
        Meta(
            description="Folder of a skill (it has a SKILL.md), or of several, from the folder of sources.yaml; with "
            "`git` from the top of the repository."
        ),
    ] = ""
    git: Annotated[
        str, Meta(description="Repository to fetch it from: https://, ssh://, user@host:path or file://.")
    ] = ""
    commit: Annotated[str, Meta(description="Of `git`: the full id of the commit; branches and tags can move.")] = ""


class SkillSource(Source, frozen=True, tag="skill"):
    """Agent Skills: folders with a SKILL.md. Each can be read as `<source>/<skill>.read`; one with a `toolhub.json`
    is a tool besides, `<source>/<skill>`."""

    skills: Annotated[
        tuple[SkillEntry, ...], Meta(description="Where skills are: folders, or commits of git repositories.")
    ] = ()
    trust: Annotated[
        Literal["", "always", "first-use", "approval"],
        Meta(
            description="When a skill may be used: always, as first seen, or once a person has approved it; empty: "
            "`approval` where one of `skills` comes from git, else `first-use`."
        ),
    ] = ""
    timeout_s: Annotated[
        float,
        Meta(description="Longest time in seconds of a call of its tools; a skill's own limit is shorter.", gt=0),
    ] = 3_600.0


def trust_of(source: SkillSource) -> Trust:
    """Return the trust: files of this machine are the operator's, a git server's are untrusted."""
    if source.trust:
        return Trust(source.trust)
    return Trust.APPROVAL if any(entry.git for entry in source.skills) else Trust.FIRST_USE


def endpoint_of(source: SkillSource) -> str:
    """Return where its skills are, for people and records."""
    shown = ", ".join(place_of(entry) for entry in source.skills)
    return shown if len(shown) <= _ENDPOINT_MAX_CHARS else f"{shown[: _ENDPOINT_MAX_CHARS - 1]}…"


def place_of(entry: SkillEntry) -> str:
    """Return `/srv/skills`, or `https://host/repository@0123456789ab:folder`."""
    if not entry.git:
        return entry.path
    return f"{entry.git}@{entry.commit[:_SHORT_CHARS]}" + (f":{entry.path}" if entry.path else "")


def check_entry(place: str, entry: SkillEntry) -> None:
    """Raises SourceInvalid, which says what to write."""
    if not entry.git:
        if not entry.path:
            raise SourceInvalid(f"{place}: needs `path`, or `git` and `commit`")
        if entry.commit:
            raise SourceInvalid(f"{place}.commit: goes with `git`")
        return
    _check_address(f"{place}.git", entry.git)
    if _COMMIT.fullmatch(entry.commit) is None:
        raise SourceInvalid(
            f"{place}.commit: must be the full id of a commit, 40 hex digits, such as `git rev-parse HEAD` prints"
        )
    below = PurePosixPath(entry.path)
    if below.is_absolute() or ".." in below.parts or not entry.path.isprintable():
        raise SourceInvalid(f"{place}.path: must be a folder of the repository, without `..`")


def _check_address(place: str, address: str) -> None:
    if _SCP.fullmatch(address):
        return
    try:
        parts = urlsplit(address)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in _SCHEMES or not address.isprintable() or " " in address:
        raise SourceInvalid(f"{place}: must begin with https://, ssh:// or file://, or be user@host:path")
    if parts.scheme == "file" and parts.netloc:
        raise SourceInvalid(f"{place}: a file:// address names a folder of this machine: file:///path")
    if parts.scheme != "file" and (not parts.hostname or parts.hostname.startswith("-")):
        raise SourceInvalid(f"{place}: it has no host")
    if parts.password or (parts.username and parts.scheme == "https"):
        raise SourceInvalid(
            f"{place}: must not hold credentials; use ssh:// with a key of the hub's user, or `path` to a clone"
        )


def files_of(entry: SkillEntry) -> tuple[str, ...]:
    """Return the keys of the entry that name files of this machine."""
    return () if entry.git else ("path",)


def _check_source(place: str, source: SkillSource) -> None:
    if not source.skills:
        raise SourceInvalid(f"{place}.skills: list folders (`path`) or repositories (`git` and `commit`)")
    for at, entry in enumerate(source.skills):
        check_entry(f"{place}.skills[{at}]", entry)


def _missing(source: SkillSource, _trusted_namespaces: tuple[str, ...]) -> Iterator[str]:
    for entry in source.skills:
        if entry.git and shutil.which("git") is None:
            yield "the program `git` is not on the PATH: install git, or clone the repository and give `path`"
        elif not entry.git and not Path(entry.path).expanduser().is_dir():
            yield f"skills: there is no folder {entry.path}"


def _remarks(source: SkillSource) -> Iterator[str]:
    # Imported here, because a command line that only lists sources does not need to read skills.
    from toolhub_service.adapters.skill.skill import remarks_on

    return remarks_on(Path(entry.path).expanduser() for entry in source.skills if not entry.git)


SKILL: Final[SourceKind[Any]] = SourceKind(
    ToolKind.SKILL,
    SkillSource,
    {SkillEntry: "skills: one place of skills"},
    _check_source,
    "toolhub_service.adapters.skill.adapter:SkillOpener",
    files={SkillEntry: files_of},
    missing=_missing,
    remarks=_remarks,
    trust=trust_of,
    registering="A skill is a folder: `toolhub skills add PATH` names it in sources.yaml",
)
