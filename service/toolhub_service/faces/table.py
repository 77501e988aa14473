"""A face is a table: its tools' names, arguments and answers, each beside those of the hub's tool that does the work.

A call through a face is translated before step 1 and its answer after step 9: the same steps, policy and record apply
to it, and there is no code of a tool here. A call that does not fit the table goes on as one that step 1 or 2 refuses,
so that it is checked, answered and recorded like every other.
"""

from __future__ import annotations

import asyncio
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from toolhub_service.domain.call import Call
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolError, Violation
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import EventSink, Invoker
from toolhub_service.domain.result import Plan, ToolResult
from toolhub_service.domain.tool import ToolSpec

USER: Final = "context.user_id"
"""`Argument.to` of what names a person: it goes into the call's context, where policy decides whether to believe it."""
FACE_HEADER: Final = "toolhub-face"
"""The entry of an RPC's metadata that names a face."""
FACE_LABEL: Final = "face"
"""The label of the audit log that says through which face a call came, and as which of its tools."""

# As the contract's ids are (proto/toolhub/v1/rules.proto).
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}")
_TOOL_NAME_MAX: Final = 256


class Argument(msgspec.Struct, frozen=True):
    """One argument of a face's tool, and where its value goes."""

    to: str
    """The argument of the hub's tool, or USER."""
    schema: JsonObject
    """As definitions show it to a model. The hub's tool has the last word."""
    required: bool = False
    default: JsonValue = None
    """In the face's unit: sent where the caller leaves it out and the hub's tool has another default. None: nothing."""
    values: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    """The hub's value for some of the face's; any other goes as it is."""
    scale: int = 1
    """The hub's unit in the face's: 1,000 where a face counts seconds and the hub milliseconds."""


Render = Callable[[Mapping[str, Any]], JsonValue]
"""The face's answer, from the value of the hub's tool. Its docstring is shown in docs/faces.md."""


class FaceTool(msgspec.Struct, frozen=True):
    """One row."""

    name: str
    tool: str
    """The hub's tool."""
    arguments: Mapping[str, Argument]
    answer: Render
    fixed: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    """Arguments of the hub's tool that the face does not have."""
    description: str = ""
    """For a model; empty: that of the hub's tool."""
    passes: bool = False
    """Whether arguments go to the hub's tool as they are: a row that an operator adds for a tool of one's own."""
    chooser: str = ""
    """An argument whose value chooses the hub's tool, and goes no further."""
    others: Mapping[str, FaceTool] = msgspec.field(default_factory=dict)
    """With `chooser`: the row for each value. The first is that of a call without it, and has this row's tool."""

    def rows(self) -> Mapping[str, FaceTool]:
        """Return this row, or those that its chooser selects from, by value."""
        return self.others or {"": self}

    def choose(self, args: JsonObject) -> FaceTool | None:
        """Return the row for these arguments; None: the chooser has no such value."""
        value = args.get(self.chooser) if self.chooser else None
        if value is None:
            return next(iter(self.rows().values()))
        return self.others.get(value) if isinstance(value, str) else None

    def parameters(self, rows: Mapping[str, FaceTool]) -> dict[str, JsonValue]:
        """Return the JSON Schema of the arguments, with those of its rows."""
        known = list(dict.fromkeys(name for row in rows.values() for name in row.arguments))
        properties: dict[str, JsonValue] = {}
        # A model fills one schema for all rows: arguments that only some of them need cannot be required.
        required = [name for name in known if all(name in row.required_arguments() for row in rows.values())]
        if self.chooser:
            first = next(iter(self.others))
            properties[self.chooser] = {
                "type": "string",
                "enum": list(rows),
                **({"default": first} if first in rows else {}),
            }
            required += [self.chooser] if first not in rows else []  # what is left out chooses a row that cannot run
        properties |= {name: self._shown_argument(name, rows) for name in known}
        schema: dict[str, JsonValue] = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        return schema

    def _shown_argument(self, name: str, rows: Mapping[str, FaceTool]) -> JsonObject:
        """Return the schema of an argument of one or several rows, with what each says of it."""
        shown = {value: row.arguments[name].schema for value, row in rows.items() if name in row.arguments}
        first, *rest = shown.values()
        if all(schema == first for schema in rest) and len(shown) == len(rows):
            return first
        said = [f"With {self.chooser} {value}: {schema['description']}" for value, schema in shown.items()]
        return {**first, "description": " ".join(said)} if len(rows) > 1 else first

    def rename_arguments(self, args: JsonObject) -> dict[str, JsonValue]:
        """Return the arguments of the hub's tool under the face's names, as far as it has them; for logs."""
        names = {each.to: name for row in self.rows().values() for name, each in row.arguments.items()}
        return {names[name]: value for name, value in args.items() if name in names}

    def required_arguments(self) -> list[str]:
        return [name for name, argument in self.arguments.items() if argument.required]

    def tool_for_model(self, can_run: Callable[[str], ToolSpec | None]) -> ToolSpec | None:
        """Return what a model is shown of the row; None when the hub's tool cannot run.

        `can_run`: the tool that can.
        """
        usable = {value: row for value, row in self.rows().items() if can_run(row.tool) is not None}
        spec = next((spec for row in usable.values() if (spec := can_run(row.tool)) is not None), None)
        if spec is None:
            return None
        schema = spec.input_schema if self.passes else self.parameters(usable)
        (only,) = usable.values() if len(usable) == 1 else (self,)
        description = only.description or self.description or spec.description
        return replace(spec, description=description, input_schema=schema, output_schema={})


class Face(msgspec.Struct, frozen=True):
    name: str
    title: str
    """One sentence on whose tools these are."""
    tools: Mapping[str, FaceTool]
    succeed: Callable[[JsonValue], JsonValue]
    """What is answered around the answer of a tool."""
    fail: Callable[[ToolError], JsonValue]
    """What is answered instead of an error."""

    def ask(self, call: Call) -> Call:
        """Return the call as the hub's own; a call that does not fit the table carries why to the step that refuses it.

        Reads large arguments, so such a call should run in a thread.
        """
        row = self.tools.get(call.tool)
        label = f"{self.name}:{call.tool}"[:_TOOL_NAME_MAX]
        context = call.context._replace(labels={**call.context.labels, FACE_LABEL: label})
        call = call._replace(args_form="")  # the form is that of a face's definition, whose words the table translates
        if row is None:
            return call._replace(tool=label, context=context, unread=None, unread_bytes=0)  # a name that no tool has
        call = call._replace(tool=row.tool, context=context, purpose=call.purpose or f"called as {label}")
        if call.args_error is not None:
            return call
        if call.unread is None:
            return _translate_call(row, call, call.args)
        args, error = call.unread()
        asked = call._replace(args_error=error) if error is not None else _translate_call(row, call, args)
        # Step 2 goes on with them beside other calls, as with all that is large.
        return asked._replace(args={}, args_error=None, unread=lambda: (asked.args, asked.args_error))

    def answer(self, asked: str, answer: ToolResult) -> ToolResult:
        """Return the result as the face's: its `value` is the face's answer, also for a failure.

        `asked`: the face's tool.
        """
        row = self.tools.get(asked)
        if row is not None:
            row = next((each for each in row.rows().values() if each.tool == answer.tool), row)
        if answer.error is not None:
            error = self._unknown(asked, answer.error) if row is None else self._reword_error(row, answer.error)
            return answer._replace(error=error, value=self.fail(error))
        if row is None:
            return answer
        value: JsonValue = answer.value
        if answer.job is not None:
            value = {"jobId": answer.job.job_id, "state": answer.job.state.value}
        try:
            return answer._replace(value=self.succeed(row.answer(value)))  # type: ignore[arg-type]
        except (KeyError, TypeError):  # cut beyond its structure, or of a tool that is not the hub's own
            return answer._replace(value=self.succeed(value))

    def _reword_error(self, row: FaceTool, error: ToolError) -> ToolError:
        names = {each.tool: name for name, known in self.tools.items() for each in known.rows().values()}
        return _lacking(row, _reword_by(row, error, names))

    def _unknown(self, asked: str, error: ToolError) -> ToolError:
        if error.kind is not ErrorKind.TOOL_NOT_FOUND:
            return error
        near = difflib.get_close_matches(asked[:100], self.tools, 3, 0.75)
        message = f"{self.name} has no tool {asked[:100]!r}. Use one of: {', '.join(self.tools)}."
        return msgspec.structs.replace(error, message=message, details={**error.details, "did_you_mean": near})


class FacedInvoker:
    """The pipeline behind a face."""

    def __init__(self, invoker: Invoker, face: Face) -> None:
        self._invoker = invoker
        self.face = face
        # Large arguments are read one call after another, so that they cannot occupy all threads.
        self._reading = asyncio.Lock()

    async def invoke(self, call: Call, sink: EventSink) -> ToolResult | Plan:
        """A plan stays the hub's own: it shows what would be done."""
        if call.unread is None:
            asked = self.face.ask(call)
        else:
            async with self._reading:
                asked = await asyncio.to_thread(self.face.ask, call)
        answer = await self._invoker.invoke(asked, sink)
        return answer if isinstance(answer, Plan) else self.face.answer(call.tool, answer)


class Faces:
    """The faces of a hub, by name."""

    def __init__(self, invoker: Invoker, faces: Iterable[Face]) -> None:
        self._invoker = invoker
        self._faced = {face.name: FacedInvoker(invoker, face) for face in faces}

    def behind(self, name: str) -> Invoker:
        """Return the invoker for an RPC that names this face, empty for none. Raises HubFailure FACE_NOT_FOUND."""
        return self._invoker if not name else self._of(name)

    def face(self, name: str) -> Face:
        """Return the face. Raises HubFailure FACE_NOT_FOUND."""
        return self._of(name).face

    def _of(self, name: str) -> FacedInvoker:
        if name in self._faced:
            return self._faced[name]
        message = f"There is no face {name[:100]!r} here. Use one of: {', '.join(self._faced) or 'none'}."
        raise HubFailure(Reason.FACE_NOT_FOUND, message)


def _translate_call(row: FaceTool, call: Call, args: JsonObject) -> Call:
    translated, error, user_id = translate(row, args)
    context = call.context
    if error is None and user_id:
        if context.user_id and context.user_id != user_id:
            error = ToolError(
                ErrorKind.INVALID_INPUT, "Two persons are named: leave user_id out of the context or make them equal."
            )
        context = context._replace(user_id=user_id)
    tool = (row.choose(args) or row).tool
    return call._replace(tool=tool, args=translated, args_error=error, context=context)


def translate(row: FaceTool, args: JsonObject) -> tuple[JsonObject, ToolError | None, str]:
    """Return (the arguments of the hub's tool, why there are none, the user of the call)."""
    if row.passes:
        return args, None, ""
    if row.chooser:
        chosen = row.choose(args)
        if chosen is None:
            message = f"{row.chooser} must be one of {', '.join(row.others)}."
            return {}, _invalid(f"/{row.chooser}", "enum", message), ""
        args = {name: value for name, value in args.items() if name != row.chooser}
        row = chosen
    if problem := _misfit(row, args):
        return {}, problem, ""
    sent: dict[str, JsonValue] = dict(row.fixed)
    user_id = ""
    for name, argument in row.arguments.items():
        value = args.get(name)
        value = argument.default if value is None else value  # as in Python, null is what was left out
        if value is None:
            continue
        if argument.to != USER:
            sent[argument.to] = _in_words_of_the_hub(value, argument)
        elif isinstance(value, str) and _ID.fullmatch(value):
            user_id = value
        else:
            message = f"{name} must be 1 to 128 ASCII letters, digits and ._:@/+-, and begin with a letter or digit."
            return {}, _invalid(f"/{name}", "pattern", message), ""
    return sent, None, user_id


def _in_words_of_the_hub(value: JsonValue, argument: Argument) -> JsonValue:
    """Return the value in the hub's units; anything else is unchanged, for the hub's schema to validate."""
    if isinstance(value, str):
        return argument.values.get(value, value)
    if argument.scale == 1 or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    scaled = value * argument.scale
    return scaled if isinstance(scaled, int) else round(scaled) if math.isfinite(scaled) else value


def _misfit(row: FaceTool, args: JsonObject) -> ToolError | None:
    """Return what the hub's tool cannot detect: a name that the face does not have, though the hub's tool may."""
    known = f"{row.name} takes {', '.join(row.arguments)}." if row.arguments else f"{row.name} takes no arguments."
    unknown = [name for name in args if name not in row.arguments]
    if unknown:
        return _invalid("", "additionalProperties", f"{row.name} has no argument {unknown[0][:100]!r}. {known}")
    missing = [name for name, argument in row.arguments.items() if argument.required and args.get(name) is None]
    if missing:
        return _invalid("", "required", f"{row.name} needs {' and '.join(missing)}. {known}")
    return None


def _invalid(path: str, keyword: str, message: str) -> ToolError:
    violation = Violation(path=path, keyword=keyword, message=message)
    return ToolError(ErrorKind.INPUT_SCHEMA_INVALID, message, violations=(violation,))


def _lacking(row: FaceTool, error: ToolError) -> ToolError:
    """Report a row whose tool this hub does not have as unavailable."""
    if error.kind is not ErrorKind.TOOL_NOT_FOUND:
        return error
    message = f"{row.name} cannot be used here: this hub has no tool for it. Use another tool."
    details: dict[str, JsonValue] = {"reason": f"there is no {row.tool}", "state": "UNAVAILABLE"}
    return ToolError(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False, details=details)


# Errors name the hub's tools and arguments: users of the face are given the face's names, and nothing that it lacks.


def in_own_words(text: str, names: Mapping[str, str]) -> str:
    """Return a text of the hub with the face's names of its tools, by the hub's; one that the face lacks is "another
    tool"."""
    return _HUB_TOOL.sub(lambda found: names.get(found[0], "another tool"), text)


def _reword_by(row: FaceTool, error: ToolError, tools: Mapping[str, str]) -> ToolError:
    names = {argument.to: name for name, argument in row.arguments.items() if argument.to not in (name, USER)}
    units = {argument.to: argument.scale for argument in row.arguments.values() if argument.scale != 1}
    had = {argument.to for argument in row.arguments.values()}

    def advise(found: re.Match[str]) -> str:
        """Advice to set an argument, without it where the face does not have the argument."""
        if row.passes or found["name"] in had:
            return found[0]
        return found["next"].upper() if found[0][0].isupper() else found["next"]

    def in_words(text: str) -> str:
        text = in_own_words(text, {**tools, row.tool: row.name})
        text = _SETTING.sub(advise, text)
        return _NAME.sub(lambda found: names.get(found[1], found[1]) if _is_name(text, found) else found[0], text)

    def move(violation: Violation) -> Violation:
        first, _, rest = violation.path.removeprefix("/").partition("/")
        path = f"/{names[first]}" + (f"/{rest}" if rest else "") if first in names else violation.path
        scale = units.get(first, 1)
        unit = f" One of its units is {scale:,} of these." if scale != 1 else ""
        return msgspec.structs.replace(
            violation, path=path, message=in_words(violation.message) + unit, hint=in_words(violation.hint)
        )

    return msgspec.structs.replace(
        error, message=in_words(error.message), violations=tuple(map(move, error.violations))
    )


_HUB_TOOL: Final = re.compile(r"\bcore/[a-z]+(?:\.[A-Za-z0-9]+)+")
# "Raise maxBytes, or request less.": the alternative stands alone where there is no such argument.
_SETTING: Final = re.compile(r"\b(?:raise|set) (?P<name>[a-z]\w*)(?: to \w+)?,? or (?P<next>\w)", re.IGNORECASE)
_NAME: Final = re.compile(r"\b([A-Za-z][A-Za-z0-9]*)\b")
_QUOTES: Final = frozenset("'\"`/")


def _is_name(text: str, found: re.Match[str]) -> bool:
    """Return whether the word is an argument's name and not English: in camel case, or quoted."""
    word, before = found[1], text[found.start() - 1 : found.start()]
    return (word != word.lower() and word[0].islower()) or (before in _QUOTES and bool(before))
