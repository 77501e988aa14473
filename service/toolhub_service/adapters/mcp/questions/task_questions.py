"""Input that a running task asks for.

2026-07-28   tasks/get has the requests (`inputRequests`), tasks/update answers each once. A person is asked as in a
             call: the job waits, its task with it, and the next run answers.
2025-11-25   the server asks on the stream of tasks/result and waits there, so nobody can be asked: the session's
             callback (`elicitation_callback`) answers at once.
"""

from __future__ import annotations

from typing import Final

from toolhub_service.adapters.mcp.questions.elicitation import REQUESTS_MAX, Answering, Questions
from toolhub_service.adapters.upstream import as_object
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.secrets import Redact

STATUS: Final = "input_required"


class TaskQuestions(Questions):
    """The questions of one run that follows a task. Each run makes a new one; people's earlier answers come with the
    call."""

    def __init__(self, call: GrantedCall, elicitation: Answering, redact: Redact) -> None:
        super().__init__(call, elicitation, redact)
        # The run after a person's answer gets the task's questions again, and answers them from here.
        self.earlier_answers = dict(self.given_answers)
        self._answered: set[str] = set()

    def answers_for(self, task: JsonObject) -> dict[str, JsonValue] | None:
        """Return the answers still missing, by key; None when the task requests what the hub cannot provide, or asks
        too often.

        Raises QuestionAsked: a person must answer first.
        """
        requests = as_object(task.get("inputRequests"))
        if not requests or len(requests) > REQUESTS_MAX:
            return None
        fresh = {key: requests[key] for key in sorted(requests.keys() - self._answered)}
        if fresh and self._is_too_often():
            return None
        try:
            self._take_all(fresh)
        except ToolFailure:
            return None
        return self.answers

    def may_be_asked(self) -> bool:
        """Return whether a server of 2025-11-25 may ask; where it may not, the capability was not declared."""
        return self._elicitation not in ("decline", "refuse") and not self._is_too_often()

    def note_answers(self, answers: dict[str, JsonValue]) -> None:
        self._answered.update(answers)
