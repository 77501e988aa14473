"""Skills of a git repository: exactly one commit, fetched by the git program into the hub's data folder.

A repository is untrusted. So git runs without the configuration of machine and user, without hooks, submodules,
filters, credentials and questions, speaks only the protocol of the address, and is bounded in time and in the size of a
file; the files of the commit are listed and checked before any is written. The commit's id is a digest: what has been
fetched once is not fetched again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from toolhub_service.adapters.skill.kind import SkillEntry
from toolhub_service.adapters.upstream import one_line
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.guards.secrets import Redact
from toolhub_service.sandbox.child import Program
from toolhub_service.sandbox.process import Finished, run_process

_FETCH_S: Final = 50.0  # within the minute that one reading of a source may take
_LIST_MAX_BYTES: Final = 4 * 1024 * 1024
_FILES_MAX: Final = 10_000
_TOTAL_MAX_BYTES: Final = 512 * 1024 * 1024
_PACK_MAX_BYTES: Final = 512 * 1024 * 1024
_EXCERPT_CHARS: Final = 300
_MODES: Final = frozenset({"100644", "100755", "120000"})
_SHA1_DIGITS: Final = 40
_NAME_CHARS: Final = 32
_TREE: Final = "tree"
_NOT_BY_ID: Final = re.compile(r"not our ref|unadvertised object")
_ENTRY: Final = re.compile(rb"(\d{6}) (\w+) [0-9a-f]+ +(\d+|-)\t")
# Variables for a client behind a proxy or with a private CA.
_PASSED: Final = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO"),
)
_CONFIG: Final = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.attributesFile=/dev/null", "core.autocrlf=false"),
    *("credential.helper=", "submodule.recurse=false", "fetch.recurseSubmodules=false", "transfer.fsckObjects=true"),
    *("http.followRedirects=false", "protocol.allow=never", "gc.auto=0", "maintenance.auto=false"),
)


def folder_of(kept: Path, entry: SkillEntry) -> Path:
    """Return where the files of the entry's commit are once it has been fetched into the folder `kept`."""
    return _place_of(kept, entry) / _TREE / entry.path


def _place_of(kept: Path, entry: SkillEntry) -> Path:
    return kept / hashlib.sha256(f"{entry.git}\0{entry.commit}\0{entry.path}".encode()).hexdigest()[:_NAME_CHARS]


@dataclass(slots=True)
class Checkouts:
    """All commits that a hub has fetched, each in its own folder."""

    folder: Path
    """Folder within the hub's data folder, created when needed."""
    redact: Redact
    program: str = "git"
    passed: tuple[str, ...] = ()
    """Further variables of the hub's environment that git gets."""
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def folder_of(self, entry: SkillEntry) -> Path:
        """Return the folder with the files of the entry's commit. Raises ToolFailure for an operator."""
        place = _place_of(self.folder, entry)
        async with self._locks.setdefault(place.name, asyncio.Lock()):
            if not await asyncio.to_thread((place / _TREE).is_dir):
                await self._fetch(entry, place)
        return folder_of(self.folder, entry)

    async def _fetch(self, entry: SkillEntry, place: Path) -> None:
        git = shutil.which(self.program)
        if git is None:
            message = "The program `git` is not installed: install git, or clone the repository and give `path`."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False)
        # Named by process, because workers of one hub read the same sources.
        draft = place.with_name(f"{place.name}.{os.getpid()}.new")
        try:
            await asyncio.to_thread(_make_anew, draft)
            async with asyncio.timeout(_FETCH_S):
                await self._fill(_Git(git, draft, self._environment(entry, draft), entry.git, self.redact), entry)
            await asyncio.to_thread(_put, draft, place)
        except TimeoutError:
            message = f"{entry.git} was not fetched within {_FETCH_S:g} s."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message) from None
        except OSError as failed:
            message = f"{entry.git} could not be kept: {os.strerror(failed.errno or 0)}."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message) from failed
        finally:
            await asyncio.to_thread(shutil.rmtree, draft, True)

    async def _fill(self, git: _Git, entry: SkillEntry) -> None:
        digest = "sha1" if len(entry.commit) == _SHA1_DIGITS else "sha256"
        # Without templates, which may contain hooks of this machine.
        await git.run(["init", "--quiet", "--bare", "--template=", f"--object-format={digest}", "repository"])
        try:
            await git.run(["fetch", "--quiet", "--depth=1", "--no-tags", "--", entry.git, entry.commit])
        except ToolFailure as failure:
            # Some servers provide branches only, not commits by their ids.
            if _NOT_BY_ID.search(failure.error.message) is None:
                raise
            await git.run(["fetch", "--quiet", "--no-tags", "--", entry.git, "+refs/heads/*:refs/heads/*"])
        try:
            await git.run(["cat-file", "-e", f"{entry.commit}^{{commit}}"])
        except ToolFailure:
            message = f"{entry.git} has no commit {entry.commit}: correct `commit`."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False) from None
        # Checked before the files are written: a small pack may unpack to a full disk.
        _check_listing(await git.run(["ls-tree", "-r", "-l", "-z", entry.commit, "--", entry.path or "."]))
        await git.run([f"--work-tree={_TREE}", "checkout", "--quiet", "--force", entry.commit, "--", entry.path or "."])

    def _environment(self, entry: SkillEntry, draft: Path) -> Mapping[str, str]:
        is_ssh = not entry.git.startswith(("https://", "file://"))
        # Without a home there is no .netrc; an ssh key is in the real home.
        home = os.environ.get("HOME", "/") if is_ssh else str(draft / "home")
        names = (*_PASSED, *self.passed, *(("SSH_AUTH_SOCK",) if is_ssh else ()))
        return {
            **{name: os.environ[name] for name in names if name in os.environ},
            "HOME": home,
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "SSH_ASKPASS": "/bin/false",
            "GIT_ALLOW_PROTOCOL": "https" if entry.git.startswith("https://") else "ssh" if is_ssh else "file",
            "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oStrictHostKeyChecking=yes -oClearAllForwardings=yes",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_LITERAL_PATHSPECS": "1",
        }


@dataclass(frozen=True, slots=True)
class _Git:
    """The git program, in the folder of one checkout."""

    program: str
    folder: Path
    environment: Mapping[str, str]
    address: str
    redact: Redact

    async def run(self, words: Sequence[str]) -> bytes:
        """Return its output. Raises ToolFailure with its error message; the caller limits the time."""
        where = () if words[0] == "init" else ("--git-dir=repository",)
        config = (word for setting in _CONFIG for word in ("-c", setting))
        argv = (*_limit_command(), self.program, *config, *where, *words)
        program = Program(argv, self.environment, str(self.folder))
        deadline_s = asyncio.get_running_loop().time() + _FETCH_S
        ended = await run_process(program, deadline_s=deadline_s, keep_bytes=_LIST_MAX_BYTES, on_output=_ignore_output)
        if ended.flooded or ended.stdout.total_bytes > len(ended.stdout.kept):
            raise _too_much()
        if ended.exit_code != 0 or ended.timed_out:
            raise self._fetch_failure(words, ended)
        return bytes(ended.stdout.kept)

    def _fetch_failure(self, words: Sequence[str], ended: Finished) -> ToolFailure:
        excerpt = one_line(self.redact(ended.stderr.text(4 * _EXCERPT_CHARS)[0]), _EXCERPT_CHARS)
        message = (
            f"{self.address} could not be fetched (git {words[0].lstrip('-')}): {excerpt or 'git does not say why'}"
        )
        return refuse(ErrorKind.TOOL_UNAVAILABLE, message)


def _limit_command() -> tuple[str, ...]:
    prlimit = shutil.which("prlimit")
    return (prlimit, f"--fsize={_PACK_MAX_BYTES}", "--core=0", "--") if prlimit else ()


def _check_listing(listing: bytes) -> None:
    """Raises ToolFailure for a commit that exceeds the limits, or contains what no skill may."""
    count = total_bytes = 0
    for mode, size_bytes in _entries(listing):
        count, total_bytes = count + 1, total_bytes + size_bytes
        if count > _FILES_MAX or total_bytes > _TOTAL_MAX_BYTES:
            raise _too_much()
        if mode not in _MODES:
            message = "The commit holds a submodule, which is not fetched: give `path` of a folder without one."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False)
    if not count:
        raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The commit has no such folder: correct `path`.", retryable=False)


def _entries(listing: bytes) -> Iterator[tuple[str, int]]:
    for line in listing.split(b"\0"):
        found = _ENTRY.match(line)
        if found is not None:
            yield found[1].decode(), 0 if found[3] == b"-" else int(found[3])


def _too_much() -> ToolFailure:
    message = (
        f"The commit has more than {_FILES_MAX:,} files or {_TOTAL_MAX_BYTES:,} bytes: give `path` of the folder that "
        "is needed."
    )
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False)


def _make_anew(draft: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    draft.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for folder in (draft, draft / _TREE, draft / "home"):
        folder.mkdir(mode=0o700)


def _put(draft: Path, place: Path) -> None:
    """Move only the files, atomically."""
    shutil.rmtree(draft / "repository")
    try:
        draft.rename(place)
    except OSError:
        # Another worker was faster, with the same commit.
        if not (place / _TREE).is_dir():
            raise


def _ignore_output(_lines: bytes, _stream: str) -> None: ...
