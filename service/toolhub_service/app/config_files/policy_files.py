"""Policy files, read at the start, on SIGHUP and when they change; an invalid or missing one keeps the old policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolhub_service.app.config_files.editing import Stamp, stamp_of
from toolhub_service.app.config_files.key_file import KeyFileInvalid
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.config_files.sources_file import read_sources
from toolhub_service.domain.tool import CAPABILITY_ALIASES, KNOWN_CAPABILITIES, ToolSpec
from toolhub_service.policy.advice.unmatched_names import Known
from toolhub_service.policy.live import Change, LivePolicy
from toolhub_service.policy.starter import LOCAL
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import SettingsInvalid


def known_names(settings: Settings, tools: Collection[ToolSpec]) -> Known:
    """Return the names by the tools that a hub has or would have; unreadable files are left out, and reported
    elsewhere."""
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
    """Return the configured sources by name, as plain data; none when their file is missing or invalid."""
    path = paths.sources
    if not path.exists():
        return {}
    try:
        plain: dict[str, Any] = msgspec.to_builtins(read_sources(path).sources)
    # Names cannot be compared with an unreadable file; the loader of the file reports the problem.
    except SettingsInvalid:
        return {}
    return plain


def _capabilities(sources: Mapping[str, Any]) -> Iterator[str]:
    """Yield the capabilities that callers of the sources' tools need; a source's default is `<kind>:<name>`."""
    for name, entry in sources.items():
        yield f"{entry.get('kind', '')}:{name}"
        yield from _find_capabilities(entry)


def _find_capabilities(value: object) -> Iterator[str]:
    """Yield every capability in an entry: of the source, a tool, a workflow."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "capabilities" and isinstance(inner, list | tuple):
                yield from map(str, inner)
            else:
                yield from _find_capabilities(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _find_capabilities(inner)


def _principals(settings: Settings) -> Iterable[str]:
    """Return the known principals; none when there is no key yet."""
    try:
        named = {key.name for key in Paths(settings).key_file().read().values()}
    except (OSError, KeyFileInvalid):
        return ()
    # Without any key the callers are unknown, such as principals of tokens: no name is reported as misspelt.
    return {LOCAL, *named} if named else ()


STARTER = "{}"
"""Stands for a file that never existed: the built-in starter policy."""


class PolicyFile:
    """Loads one file into a LivePolicy."""

    def __init__(
        self, path: Path, policy: LivePolicy, *, required: bool, check: Callable[[Path], str] = lambda _: ""
    ) -> None:
        """`required`: the configuration names the file, so that its absence is an error and not a first run.

        `check` returns why a file must not be read, or nothing.
        """
        self._path = path
        self._check = check
        self._policy = policy
        self._may_be_absent = not required
        # Whether a policy of the file has been in force: an empty file has then lost it, and must not fall back to the
        # default.
        self._has_spoken = False
        self._seen: Stamp = None

    def has_changed(self) -> bool:
        """Return whether the file differs from the one at the last `load`."""
        return stamp_of(self._path) != self._seen

    def load(self) -> Change:
        """Put the file in force. Never raises: `Change.problem` is the reason why the old policy stays."""
        self._seen = stamp_of(self._path)
        if self._seen is None and self._may_be_absent:
            return self._policy.replace(STARTER)
        if loose := self._check(self._path):
            return self._keep_policy(loose)
        self._may_be_absent = False  # an existing policy that vanished must not become the starter policy
        unreadable = f"{self._path} cannot be read: look whether it is there, and at its owner and mode"
        return _feed_file(self._path, self._replace) or self._keep_policy(unreadable)

    def _replace(self, text: str) -> Change:
        if self._has_spoken and not text.strip():
            return self._keep_policy(
                "it is empty, as if cut off while it was written; `{}` would mean the starter policy"
            )
        change = self._policy.replace(text or STARTER)
        self._has_spoken |= change.applied and bool(text.strip())
        return change

    def _keep_policy(self, problem: str) -> Change:
        revision = self._policy.revision
        return Change(applied=False, revision=revision, previous_revision=revision, problem=problem)


class ShadowFile:
    """Loads a candidate policy beside the live one; an empty path means that there is none."""

    def __init__(self, path: str, policy: LivePolicy) -> None:
        self._path = Path(path).expanduser() if path else None
        self._policy = policy
        self._seen: Stamp = None

    def has_changed(self) -> bool:
        return self._path is not None and stamp_of(self._path) != self._seen

    def load(self) -> Change | None:
        """Load the candidate. Return None when there is none, or no longer one: then nothing is compared."""
        if self._path is None:
            return None
        self._seen = stamp_of(self._path)
        change = _feed_file(self._path, lambda text: self._policy.shadow(text or STARTER))
        # A removed candidate is no longer compared: its differences would be of a file that nobody sees.
        if change is None:
            self._policy.shadow(None)
        return change


def _feed_file(path: Path, feed: Callable[[str], Change]) -> Change | None:
    """Return the result of `feed` for the file's text, with the path before a problem; None when it is unreadable."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    change = feed(text)
    if change.applied:
        return change
    return Change(False, change.revision, change.previous_revision, f"{path}: {change.problem}")
