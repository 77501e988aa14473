"""A model's tool call, in the form of its API, made through the hub, and the message that answers it in the same form.

Understood are those of OpenAI's Chat Completions (`tool_calls[]`) and Responses (`function_call` items), of Anthropic's
Messages (`tool_use` blocks) and of Gemini (parts with a `functionCall`, or that itself), as objects of their SDKs or as
dictionaries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from toolhub_client.answer import Answer
from toolhub_client.context import ExportForm
from toolhub_client.failures import CallFailed


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a model asks for."""

    name: str
    """The tool's name as it was exported."""
    args: Mapping[str, Any] | None
    """None: what the model wrote is no JSON object."""
    answer: Callable[[str, bool], dict[str, Any]]
    """The message for a text, and whether the call failed."""
    form: ExportForm = "openai"
    """Of the definitions for the interface that such calls come from."""


def read_tool_call(call: object) -> ToolCall:
    """Raises TypeError for what is none of the known forms."""
    kind = _field(call, "type")
    if kind == "tool_use":
        block_id = _field(call, "id")
        return ToolCall(
            _field(call, "name"),
            _field(call, "input"),
            lambda text, failed: {
                "type": "tool_result",
                "tool_use_id": block_id,
                "content": text,
                **({"is_error": True} if failed else {}),
            },
            "anthropic",
        )
    if kind == "function_call":
        call_id = _field(call, "call_id")
        return ToolCall(
            _field(call, "name"),
            _object(_field(call, "arguments")),
            lambda text, _: {"type": "function_call_output", "call_id": call_id, "output": text},
        )
    if kind == "function" or _field(call, "function") is not None:
        call_id, function = _field(call, "id"), _field(call, "function")
        return ToolCall(
            _field(function, "name"),
            _object(_field(function, "arguments")),
            lambda text, _: {"role": "tool", "tool_call_id": call_id, "content": text},
        )
    part = _field(call, "functionCall") or _field(call, "function_call") or call
    if kind is None and isinstance(_field(part, "name"), str):
        return _of_gemini(part)
    raise TypeError(
        f"{type(call).__name__} is no tool call: give an entry of OpenAI's `tool_calls`, a `function_call` item, an "
        "Anthropic `tool_use` block, or a part of Gemini with a `functionCall`"
    )


def _of_gemini(call: object) -> ToolCall:
    name, call_id, args = _field(call, "name"), _field(call, "id"), _field(call, "args")

    def answer(text: str, failed: bool) -> dict[str, Any]:
        response = {"name": name, "response": {"error" if failed else "output": text}}
        return {"functionResponse": {**response, **({"id": call_id} if call_id else {})}}

    return ToolCall(name, {} if args is None else args if isinstance(args, Mapping) else None, answer, "gemini")


def to_text(answer: Answer) -> str:
    """What a model is shown of an answer: its JSON, or what went wrong and what to do about it."""
    if (error := answer.error) is not None:
        return failure_text(error)
    if answer.job_id:
        return json.dumps({"job_id": answer.job_id, "note": "The call goes on as a job; ask core/job.status for it."})
    if answer.result.WhichOneof("result") == "result_json":
        return answer.result.result_json.decode()
    return json.dumps(answer.value, ensure_ascii=False)


def failure_text(error: CallFailed) -> str:
    """One line each: kind and message, the facts for repair, the advice."""
    lines = [f"{error.kind}: {error}"]
    facts = {name: value for name, value in error.details.items() if name not in {"remedy", "policy_revision"}}
    if facts:
        lines.append(json.dumps(facts, ensure_ascii=False))
    if error.advice:
        lines.append(error.advice)
    return "\n".join(lines)


NO_OBJECT = (
    "INVALID_INPUT: The arguments are not a JSON object. Send one object with a name for each argument, and nothing "
    "around it."
)


def _object(text: Any) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text or "{}")
    except (TypeError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _field(of: object, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)


def to_json(value: object) -> bytes:
    """UTF-8 JSON; dataclasses and pydantic models inside become objects. Raises TypeError and, for what is no JSON
    such as NaN, ValueError."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if dump := getattr(value, "model_dump", None):
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} cannot be an argument: send strings, numbers, lists and objects")
