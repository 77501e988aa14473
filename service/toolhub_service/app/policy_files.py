"""Policy files: read at the start, on SIGHUP and when they change; an invalid or vanished one keeps the old policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolhub_service.app.files import Stamp, stamp_of
from toolhub_service.app.key_file import KeyFileInvalid
from toolhub_service.app.paths import Paths
from toolhub_service.app.sources_file import read_sources
from toolhub_service.domain.tool import CAPABILITY_ALIASES, KNOWN_CAPABILITIES, ToolSpec
from toolhub_service.policy.document import LOCAL
from toolhub_service.policy.parsing import Known
from toolhub_service.policy.snapshot import Change, LivePolicy
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import SettingsInvalid


def known_names(settings: Settings, tools: Collection[ToolSpec]) -> Known:
    """By the tools that a hub has or would have; files that cannot be read are left out, and reported elsewhere."""
    sources = configured_sources(Paths(settings))
    namespaces = {spec.name.partition("/")[0] for spec in tools}
    needed = {needs for spec in tools for needs in spec.capabilities}
    return Known(
        tools=frozenset(spec.name for spec in tools),
        capabilities=KNOWN_CAPABILITIES | CAPABILITY_ALIASES.keys() | needed | set(_capabilities(sources)),
        principals=frozenset(_principals(settings)),
        unread=frozenset(sources.keys() - namespaces),
        issuers=frozenset(issuer.name for issuer in settings.auth.jwt.issuers),
    )


def configured_sources(paths: Paths) -> Mapping[str, Any]:
    """The configured sources by name, as plain data; none where their file is missing or invalid."""
    path = paths.sources
    if not path.exists():
        return {}
    try:
        plain: dict[str, Any] = msgspec.to_builtins(read_sources(path).sources)
    # Names cannot be compared with a file that cannot be read; whoever loads it says what is wrong.
    except SettingsInvalid:
        return {}
    return plain


def _capabilities(sources: Mapping[str, Any]) -> Iterator[str]:
    """What callers of the sources' tools must hold; where a source says nothing, `<kind>:<name>`."""
    for name, entry in sources.items():
        yield f"{entry.get('kind', '')}:{name}"
        yield from _written(entry)


def _written(value: object) -> Iterator[str]:
    """Every capability that stands anywhere in an entry: of the source, a tool, a workflow."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "capabilities" and isinstance(inner, list | tuple):
                yield from map(str, inner)
            else:
                yield from _written(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _written(inner)


def _principals(settings: Settings) -> Iterable[str]:
    """The principals that are distinguished here; none, where there is no key yet."""
    try:
        named = {key.name for key in Paths(settings).key_file().read().values()}
    except (OSError, KeyFileInvalid):
        return ()
    # Without any key nobody knows who may come, such as principals of tokens: nothing is called misspelt.
    return {LOCAL, *named} if named else ()


STARTER = "{}"
"""What stands for a file that never was: the built-in starter policy."""


class PolicyFile:
    """Feeds one file into a LivePolicy."""

    def __init__(
        self, path: Path, policy: LivePolicy, *, required: bool, judge: Callable[[Path], str] = lambda _: ""
    ) -> None:
        """`required`: the configuration names the file, so that its absence is an error and not a first run. `judge`
        says why a file must not be read, or nothing."""
        self._path = path
        self._judge = judge
        self._policy = policy
        self._may_be_absent = not required
        # Whether a policy of the file has been in force: an empty file has lost it then, and must not fall back to the
        # default.
        self._has_spoken = False
        self._seen: Stamp = None

    def changed(self) -> bool:
        """Whether the file is another one than at the last `load`."""
        return stamp_of(self._path) != self._seen

    def load(self) -> Change:
        """Put the file in force. Never raises: `Change.problem` says why the old policy stays."""
        self._seen = stamp_of(self._path)
        if self._seen is None and self._may_be_absent:
            return self._policy.replace(STARTER)
        if loose := self._judge(self._path):
            return self._kept(loose)
        self._may_be_absent = False  # a policy that was there and vanished must not become the starter
        unreadable = f"{self._path} cannot be read: look whether it is there, and at its owner and mode"
        return _fed(self._path, self._replace) or self._kept(unreadable)

    def _replace(self, text: str) -> Change:
        if self._has_spoken and not text.strip():
            return self._kept("it is empty, as if cut off while it was written; `{}` would mean the starter policy")
        change = self._policy.replace(text or STARTER)
        self._has_spoken |= change.applied and bool(text.strip())
        return change

    def _kept(self, problem: str) -> Change:
        revision = self._policy.revision
        return Change(applied=False, revision=revision, previous_revision=revision, problem=problem)


class ShadowFile:
    """Feeds a candidate policy beside the live one; an empty path means that there is none."""

    def __init__(self, path: str, policy: LivePolicy) -> None:
        self._path = Path(path).expanduser() if path else None
        self._policy = policy
        self._seen: Stamp = None

    def changed(self) -> bool:
        return self._path is not None and stamp_of(self._path) != self._seen

    def load(self) -> Change | None:
        """Let the file watch. None when there is no candidate, or no longer one: then nothing watches."""
        if self._path is None:
            return None
        self._seen = stamp_of(self._path)
        change = _fed(self._path, lambda text: self._policy.shadow(text or STARTER))
        # A candidate that is gone watches no longer: its differences would be of a file that nobody sees.
        if change is None:
            self._policy.shadow(None)
        return change


def _fed(path: Path, feed: Callable[[str], Change]) -> Change | None:
    """What `feed` says of the file's text, the path before the problem; None when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    change = feed(text)
    if change.applied:
        return change
    return Change(False, change.revision, change.previous_revision, f"{path}: {change.problem}")
