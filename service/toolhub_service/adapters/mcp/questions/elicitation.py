"""Questions of a server during a call (InputRequiredResult, SEP-2322), and how the call continues.

A server that needs input answers `input_required` with requests by key and a sealed state of its own; sending the call
again with answers and that state resumes it. `decline` and `defaults` answer at once. `ask` raises `QuestionAsked`: the
question's continuation stores what the hub needs to continue, and a later run brings the reply. Several requests in one
answer become several questions, one after another; the server gets all answers together.

A state may expire before the answer arrives: the SDK's servers seal it with a key of their process, for ten minutes. A
server that refuses its own state has not processed the call, which then starts over, once per run. If it asks exactly
the same again, the earlier answer is used; anything else is asked of a person.

Only forms of plain values can be asked. Other requests to a person (opening a page) are declined; requests to the hub
itself (sampling, roots) end the call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, Literal

from mcp_types import INVALID_PARAMS

from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.kind import Elicitation
from toolhub_service.adapters.mcp.questions.session_callback import defaults_of
from toolhub_service.adapters.upstream import as_object, as_string, quote_foreign, write_json
from toolhub_service.domain.call import GrantedCall, Question, QuestionAsked
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.secrets import Redact

ROUNDS_MAX: Final = 8
REQUESTS_MAX: Final = 16
SCHEMA_MAX_BYTES: Final = 16 * 1024
STATE_MAX_CHARS: Final = 256 * 1024

Answering = Elicitation | Literal["refuse"]
"""What happens to a question. `refuse` ends the call: its source relays questions to the user of the client that makes
the call, for whom the hub must not decline, and this call has no client that can be asked."""

_STATE: Final = "requeststate"
_NO_CLIENT: Final = (
    "it asks the user of the MCP client that makes the call, and this call has no client that declares elicitation (a "
    "job has none at all)"
)
_DECLINE: Final[Mapping[str, JsonValue]] = {"action": "decline"}
_PLAIN_TYPES: Final = frozenset({"string", "number", "integer", "boolean"})
# Allowed keywords of a form's property (2025-11-25 and 2026-07-28); others are left out.
_KEYWORDS: Final = (
    *("type", "title", "description", "default", "enum", "enumNames", "const", "minimum", "maximum"),
    *("minLength", "maxLength", "format", "minItems", "maxItems", "oneOf", "anyOf"),
)


class Questions:
    """The server's questions in one call and their answers, between one `tools/call` and the next."""

    def __init__(self, call: GrantedCall, elicitation: Answering, redact: Redact) -> None:
        """Continue with the reply where a person was asked. Raises QuestionAsked when another question is next."""
        self._call = call
        self._elicitation = elicitation
        self._redact = redact
        self.state: str | None = None  # the server's own, sealed; returned unchanged
        self.answers: dict[str, JsonValue] = {}  # by key, in the form that the server expects
        # Questions that no person has answered yet, by key, as `{message, schema}`.
        self._pending: dict[str, JsonObject] = {}
        self._rounds = 0
        # People's answers in this call, by the digest of the question.
        self.given_answers: dict[str, JsonValue] = {}
        # The part of `given_answers` not used yet in a call that has started over; None: it has not.
        self.earlier_answers: dict[str, JsonValue] | None = None
        if call.reply is None:
            return
        self.state, self.answers, self._pending, self._rounds, self.given_answers = json.loads(call.reply.continuation)
        key = next(iter(self._pending))
        asked = self._pending.pop(key)
        answer = call.reply.answer
        self.answers[key] = self.given_answers[_digest(key, asked)] = (
            _DECLINE if answer is None else _accept_answer(answer, asked)
        )
        # One question at a time: an approval has one form.
        self._ask_next()

    @property
    def params(self) -> dict[str, Any]:
        """Return the members of the next `tools/call` besides name and arguments."""
        params: dict[str, Any] = {"inputResponses": self.answers} if self.answers else {}
        if self.state is not None:
            params["requestState"] = self.state
        return params

    def restarts(self, failure: ToolFailure) -> bool:
        """Return whether the server refuses its own state, unread, for the first time: then the call starts over."""
        upstream = failure.error.upstream
        # There is no error code for an expired state; servers say it in the message.
        if upstream is None or upstream.status != INVALID_PARAMS or _STATE not in upstream.excerpt.lower():
            return False
        # Once per call: a server that refuses its own fresh state would be called for ever.
        if self.state is None or self.earlier_answers is not None:
            return False
        self.state, self.answers, self.earlier_answers = None, {}, dict(self.given_answers)
        return True

    def take_requests(self, result: JsonObject) -> JsonObject:
        """Return the server's requests, to be answered by the client that makes the call (`set_answers`). Raises
        ToolFailure."""
        requests = self._requests_in(result)
        self._pending = {}
        return requests

    def set_answers(self, answers: JsonObject) -> None:
        self.answers = dict(answers)

    def take(self, result: JsonObject) -> None:
        """Take in what the server asks, and answer as the source's terms say.

        Raises:
            QuestionAsked: a person must answer first.
            ToolFailure: UPSTREAM_ERROR; it asks too often, or for what nobody here gives.
        """
        self._take_all(self._requests_in(result))

    def _requests_in(self, result: JsonObject) -> JsonObject:
        """Return the server's requests. Raises ToolFailure."""
        if self._is_too_often():
            raise failures.cannot_be_asked(self._call, f"it asked more than {ROUNDS_MAX} times")
        requests = as_object(result.get("inputRequests")) or {}
        state = result.get("requestState")
        if not (requests or isinstance(state, str)) or len(requests) > REQUESTS_MAX:
            raise failures.outside_protocol(self._call, "it asks a question without text")
        if isinstance(state, str) and len(state) > STATE_MAX_CHARS:
            raise failures.outside_protocol(self._call, "its state is too large to be stored")
        self.state = state if isinstance(state, str) else None
        return requests

    def _take_all(self, requests: JsonObject) -> None:
        """Answer each request or queue it for a person. Raises ToolFailure, QuestionAsked."""
        self.answers, self._pending = {}, {}
        for key, request in requests.items():
            self._take_one(key, as_object(request) or {})
        self._ask_next()

    def _take_one(self, key: str, request: JsonObject) -> None:
        """Answer the request now, or queue it for a person. Raises ToolFailure when nobody can be asked it."""
        if request.get("method") != "elicitation/create":
            what = "it requests a client feature that the hub does not offer, such as sampling"
            raise failures.cannot_be_asked(self._call, what)
        params = as_object(request.get("params")) or {}
        form = form_of(params)
        if self._elicitation == "refuse":
            raise failures.cannot_be_asked(self._call, _NO_CLIENT)
        if form is None or self._elicitation == "decline":
            self.answers[key] = _DECLINE
        elif self._elicitation == "defaults":
            given = defaults_of(form)
            self.answers[key] = _DECLINE if given is None else {"action": "accept", "content": given}
        else:
            shown = quote_foreign(as_string(params.get("message")), self._redact)
            asked: JsonObject = {
                "message": shown or f"{self._call.spec.name} asks whether to continue.",
                "schema": form,
            }
            answer = self.earlier_answers.pop(_digest(key, asked), None) if self.earlier_answers else None
            if answer is None:
                self._pending[key] = asked
            else:
                self.answers[key] = answer

    def _ask_next(self) -> None:
        """Raises QuestionAsked when a person has not answered everything yet."""
        for asked in self._pending.values():
            # The hub that has the reply reads this and may be of another release, so the order is part of the format.
            continuation = json.dumps([self.state, self.answers, self._pending, self._rounds, self.given_answers])
            raise QuestionAsked(Question(str(asked["message"]), as_object(asked["schema"]) or {}, continuation))

    def _is_too_often(self) -> bool:
        self._rounds += 1
        return self._rounds > ROUNDS_MAX


def form_of(params: JsonObject) -> dict[str, Any] | None:
    """Return the form's schema, rebuilt from members known to be harmless; empty when it only asks yes or no; None for
    any other form."""
    if params.get("mode", "form") != "form":
        return None
    schema = as_object(params.get("requestedSchema")) or {}
    text = write_json(schema)
    if text is None or len(text) > SCHEMA_MAX_BYTES:
        return None
    properties = as_object(schema.get("properties")) or {}
    if not properties:
        return {}
    rules = {name: _rule(rule) for name, rule in properties.items()}
    if None in rules.values():
        return None
    required = schema.get("required")
    names = [name for name in required if name in rules] if isinstance(required, list | tuple) else []
    return {"type": "object", "properties": rules, "required": names, "additionalProperties": False}


def _rule(rule: JsonValue) -> dict[str, Any] | None:
    """Return one property, a plain value or a choice of several words; None for anything else."""
    if not isinstance(rule, Mapping):
        return None
    kept = {keyword: rule[keyword] for keyword in _KEYWORDS if keyword in rule}
    if rule.get("type") == "array":
        items = as_object(rule.get("items")) or {}
        if not ("enum" in items or "anyOf" in items or "oneOf" in items):
            return None
        return {**kept, "items": {keyword: items[keyword] for keyword in _KEYWORDS if keyword in items}}
    kind = rule.get("type")
    return kept if isinstance(kind, str) and kind in _PLAIN_TYPES else None


def _digest(key: str, asked: JsonObject) -> str:
    # Digest of all that the person saw: an answer is reused only for exactly the same question.
    return sha256(json.dumps([key, asked["message"], asked["schema"]], sort_keys=True).encode()).hexdigest()


def _accept_answer(answer: JsonObject, asked: JsonObject) -> JsonValue:
    # Only the fields of the form leave the hub.
    known = as_object((as_object(asked["schema"]) or {}).get("properties")) or {}
    return {"action": "accept", "content": {name: value for name, value in answer.items() if name in known}}
