"""What a task wants of a person while it runs. Its server holds the task open meanwhile, so nobody is waited for: it is
answered at once, by the form's defaults where the source's terms say so, else by a no.

    2026-07-28   tasks/get tells what is wanted (`inputRequests`), tasks/update answers it; each request once
    2025-11-25   the server asks on the stream of tasks/result, where the session's own callback answers (questions.py)
"""

from __future__ import annotations

from typing import Final

from toolhub_service.adapters.mcp.asking import REQUESTS_MAX, ROUNDS_MAX, at_once
from toolhub_service.adapters.mcp.terms import Elicitation
from toolhub_service.adapters.shortening import as_object
from toolhub_service.domain.json import JsonObject, JsonValue

STATUS: Final = "input_required"


class TaskInput:
    """Of one run of one task."""

    def __init__(self, elicitation: Elicitation) -> None:
        self._elicitation = elicitation
        self._rounds = 0
        self._answered: set[str] = set()

    def answers(self, task: JsonObject) -> dict[str, JsonValue] | None:
        """What has not been answered yet, by key; None when it wants what nobody here gives, or too often."""
        requests = as_object(task.get("inputRequests"))
        if not requests or len(requests) > REQUESTS_MAX:
            return None
        answers: dict[str, JsonValue] = {}
        for key in requests.keys() - self._answered:
            answer = at_once(as_object(requests[key]) or {}, self._elicitation)
            if answer is None:
                return None
            answers[key] = answer
        return None if answers and self._is_too_often() else answers

    def may_be_asked(self) -> bool:
        """Whether the older era's server may ask: it was told beforehand where it may not."""
        return self._elicitation != "decline" and not self._is_too_often()

    def gave(self, answers: dict[str, JsonValue]) -> None:
        self._answered.update(answers)

    def _is_too_often(self) -> bool:
        self._rounds += 1
        return self._rounds > ROUNDS_MAX
