"""What a task wants of a person while it runs, and what it is told.

2026-07-28   tasks/get tells what is wanted (`inputRequests`), tasks/update answers it; each request once. A person
             who is to be asked is asked as in a call: the job waits, its task with it, and the next run answers.
2025-11-25   the server asks on the stream of tasks/result and waits there, so that nobody can be: the session's
             own callback answers at once (questions.py)
"""

from __future__ import annotations

from typing import Final

from toolhub_service.adapters.mcp import asking
from toolhub_service.adapters.mcp.terms import Elicitation
from toolhub_service.adapters.shortening import as_object
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.redaction import Redact

STATUS: Final = "input_required"


class TaskInput:
    """Of one run that follows a task. Made anew in each: what people have said already comes with the call."""

    def __init__(self, call: GrantedCall, elicitation: Elicitation, redact: Redact) -> None:
        """Raises QuestionAsked when a person has answered, and another question is next."""
        self._call = call
        self._elicitation = elicitation
        self._redact = redact
        self._step = asking.resumed(call)
        self._step.recalled = dict(self._step.said)
        self._answered: set[str] = set()

    def answers(self, task: JsonObject) -> dict[str, JsonValue] | None:
        """What has not been answered yet, by key; None when it wants what nobody here gives, or too often.

        Raises QuestionAsked: a person must answer first.
        """
        requests = as_object(task.get("inputRequests"))
        if not requests or len(requests) > asking.REQUESTS_MAX:
            return None
        fresh = sorted(requests.keys() - self._answered)
        if fresh and self._is_too_often():
            return None
        step = self._step
        step.answers, step.pending = {}, {}
        try:
            for key in fresh:
                request = as_object(requests[key]) or {}
                asking.take(step, key, request, self._call, self._elicitation, self._redact)
        except ToolFailure:
            return None
        step.ask_next()
        return step.answers

    def may_be_asked(self) -> bool:
        """Whether the older era's server may ask: it was told beforehand where it may not."""
        return self._elicitation != "decline" and not self._is_too_often()

    def gave(self, answers: dict[str, JsonValue]) -> None:
        self._answered.update(answers)

    def _is_too_often(self) -> bool:
        self._step.rounds += 1
        return self._step.rounds > asking.ROUNDS_MAX
