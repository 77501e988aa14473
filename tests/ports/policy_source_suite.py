"""What every policy source must do. A test class inherits `PolicySourceSuite` and provides the source and the calls."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.ports import PolicySource
from toolhub_service.domain.verdict import Effect


class PolicySourceSuite:
    @abstractmethod
    def source(self) -> PolicySource:
        """A source in its usual state."""

    @abstractmethod
    def calls(self) -> Sequence[PlannedCall]:
        """Calls that the source allows and calls that it does not; at least one of each."""

    def test_a_policy_allows_some_calls_and_not_others(self) -> None:
        source = self.source()
        effects = {source.decide(planned).effect is Effect.ALLOW for planned in self.calls()}
        assert effects == {True, False}

    def test_a_policy_gives_the_same_verdict_to_the_same_call(self) -> None:
        source, again = self.source(), self.source()
        for planned in self.calls():
            verdict = source.decide(planned)
            assert source.decide(planned) == verdict
            assert again.decide(planned) == verdict
        assert source.revision == again.revision

    def test_every_verdict_names_rule_revision_and_reason(self) -> None:
        source = self.source()
        for planned in self.calls():
            verdict = source.decide(planned)
            assert verdict.policy_revision == source.revision != ""
            assert verdict.rule_id
            assert verdict.reason

    def test_every_refusal_states_the_remedy(self) -> None:
        source = self.source()
        for planned in self.calls():
            verdict = source.decide(planned)
            if verdict.effect in (Effect.REQUIRE_APPROVAL, Effect.REQUIRE_PLAN):
                assert verdict.remedy

    def test_a_policy_lists_every_tool_that_it_would_allow(self) -> None:
        source = self.source()
        for planned in self.calls():
            if source.decide(planned).effect is not Effect.DENY:
                assert source.could_allow(planned.call.principal, planned.spec)
