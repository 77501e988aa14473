"""The policy file: read at the start, again on SIGHUP and when it changes; an invalid one keeps the old policy."""

from __future__ import annotations

from pathlib import Path

from toolhub_service.policy.live import Change, LivePolicy

EMPTY = "{}"
"""No file: the built-in starter policy."""


class PolicyFile:
    """Feeds one file into a LivePolicy."""

    def __init__(self, path: Path, policy: LivePolicy) -> None:
        self._path = path
        self._policy = policy
        self._seen: tuple[int, int] | None = None

    def changed(self) -> bool:
        """Whether the file is another one than at the last `load`; a vanished file is a change too."""
        return self._stamp() != self._seen

    def load(self) -> Change:
        """Put the file in force. Never raises: `Change.problem` says why the old policy stays."""
        self._seen = self._stamp()
        try:
            text = self._path.read_text(encoding="utf-8") if self._seen else EMPTY
        except (OSError, UnicodeDecodeError) as unreadable:
            return self._kept(f"{self._path} cannot be read: {type(unreadable).__name__}")
        change = self._policy.replace(text or EMPTY)
        return change if change.applied else self._kept(f"{self._path}: {change.problem}")

    def _kept(self, problem: str) -> Change:
        revision = self._policy.revision
        return Change(applied=False, revision=revision, previous_revision=revision, problem=problem)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size
