"""The policy in force: a snapshot that a reload swaps whole, and beside it, if asked for, a candidate that watches.

A reload is one assignment: a call sees the old policy or the new one, never a mixture. A document that is no policy
changes nothing and says why. A shadow decides every call too; where it differs the difference is reported, and the
verdict is the live one's, always.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.principal import Principal
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Limit, Verdict
from toolhub_service.policy.parsing import InvalidPolicy
from toolhub_service.policy.snapshot import PolicySnapshot

Source = str | Mapping[str, JsonValue]
"""YAML text, or the data of one already loaded."""


@dataclass(frozen=True, slots=True)
class Change:
    """What came of a new document."""

    applied: bool
    """False: the old policy stays, and `problem` says why."""
    revision: str
    """The revision in force now."""
    previous_revision: str
    problem: str = ""
    """For the operator, with line and path; empty when applied."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One call on which the shadow disagrees with the live policy."""

    planned: PlannedCall
    live: Verdict
    shadow: Verdict


class LivePolicy:
    """Implements `domain.ports.PolicySource` by the snapshot in force."""

    def __init__(
        self, snapshot: PolicySnapshot | None = None, on_difference: Callable[[Difference], None] | None = None
    ) -> None:
        """`on_difference` is told of each disagreement of a shadow; what it raises is counted, not passed on."""
        self._snapshot = snapshot or PolicySnapshot()
        self._shadow: PolicySnapshot | None = None
        self._on_difference = on_difference
        self.shadow_faults = 0
        """How often the shadow or the callback failed; a verdict never depends on either."""

    @property
    def revision(self) -> str:
        return self._snapshot.revision

    @property
    def snapshot(self) -> PolicySnapshot:
        return self._snapshot

    def principal(self, id: str) -> Principal:
        """A verified caller under the policy in force now."""
        return self._snapshot.principal(id)

    @property
    def shadow_revision(self) -> str:
        """The candidate's revision; empty when there is none."""
        return self._shadow.revision if self._shadow else ""

    def decide(self, planned: PlannedCall) -> Verdict:
        verdict = self._snapshot.decide(planned)
        if self._shadow is not None:
            self._compare(self._shadow, planned, verdict)
        return verdict

    def limits(self, principal_id: str, spec: ToolSpec) -> tuple[Limit, ...]:
        return self._snapshot.limits(principal_id, spec)

    def could_allow(self, principal_id: str, spec: ToolSpec) -> bool:
        return self._snapshot.could_allow(principal_id, spec)

    def replace(self, source: Source) -> Change:
        """Put a new document in force, whole or not at all."""
        before = self._snapshot.revision
        try:
            self._snapshot = PolicySnapshot.load(source)
        except InvalidPolicy as error:
            return Change(applied=False, revision=before, previous_revision=before, problem=str(error))
        return Change(applied=True, revision=self._snapshot.revision, previous_revision=before)

    def shadow(self, source: Source | None) -> Change:
        """Let a candidate watch; None ends it. A document that is no policy leaves the candidate as it was."""
        before = self.shadow_revision
        try:
            self._shadow = None if source is None else PolicySnapshot.load(source)
        except InvalidPolicy as error:
            return Change(applied=False, revision=before, previous_revision=before, problem=str(error))
        return Change(applied=True, revision=self.shadow_revision, previous_revision=before)

    def _compare(self, shadow: PolicySnapshot, planned: PlannedCall, live: Verdict) -> None:
        try:
            other = shadow.decide(planned)
            if self._on_difference is not None and _differ(live, other):
                self._on_difference(Difference(planned, live, other))
        except Exception:  # noqa: BLE001 - a watcher must never change a verdict; whoever made us tells the count
            self.shadow_faults += 1


def _differ(live: Verdict, shadow: Verdict) -> bool:
    return (live.effect, live.rule_id, live.kind, live.constraints, live.limits) != (
        shadow.effect,
        shadow.rule_id,
        shadow.kind,
        shadow.constraints,
        shadow.limits,
    )
