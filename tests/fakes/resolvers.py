"""Resolvers with the answers of a test, which count how often they were asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class FixedResolver:
    """Names to addresses; any other name leads to `default` (nothing: it does not resolve)."""

    def __init__(self, answers: Mapping[str, Sequence[str]] | None = None, *, default: Sequence[str] = ()) -> None:
        self._answers = answers or {}
        self._default = default
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self._answers.get(host, self._default)
        if not answers:
            raise OSError("no such name")
        return answers


class TurningResolver:
    """A rebinding name: another answer at every lookup."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.lookups = 0

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        answer = self._answers[min(self.lookups, len(self._answers) - 1)]
        self.lookups += 1
        return answer
