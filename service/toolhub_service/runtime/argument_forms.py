"""A call in the tool's own words, before step 2 checks them: those that a model wrote for an exported form, and
texts that hold the JSON which the schema wants.

The first is what an export has promised; a caller names the form (`ToolIntent.args_form`), and over MCP it is MCP's.
The second is a repair that an operator may allow (`arguments.repair_texts`): only arguments that the schema refuses are
touched, only texts where it accepts none, and only if it accepts the outcome; the result says what was read.
"""

from __future__ import annotations

from typing import Final

from toolhub_service.domain.call import Call
from toolhub_service.domain.errors.failure import ToolError
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.result import Evidence, EvidenceType
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.export.definitions import Dialect, reading_of
from toolhub_service.registry.export.model_arguments import Reading, restore
from toolhub_service.registry.export.plan_argument import plan_argument
from toolhub_service.schema import strict_json
from toolhub_service.schema.compiled import BoundedCache
from toolhub_service.schema.tool_schemas import ToolSchemas

_CACHED_READINGS: Final = 16_384
_REPAIR: Final = Reading(reads_texts=True)
_readings: Final[BoundedCache[Reading]] = BoundedCache(_CACHED_READINGS)


def in_own_words(call: Call, spec: ToolSpec) -> Call:
    """Return the call by the full name, without its form, its arguments as the tool's own schema has them, and
    with the plan that they name; large ones are turned back when they are read, and then `take_plan_out` ends it."""
    call = call._replace(tool=spec.name)
    if not call.args_form:
        return call
    reading = _reading(Dialect(call.args_form), spec)
    unread = call.unread
    if unread is None:
        return take_plan_out(call._replace(args=restore_arguments(call.args, spec, reading)), spec)

    def read() -> tuple[JsonObject, ToolError | None]:
        args, error = unread()
        return (args, error) if error is not None else (restore_arguments(args, spec, reading), None)

    return call._replace(unread=read)


def take_plan_out(call: Call, spec: ToolSpec) -> Call:
    """Return the call without its form and the argument for a plan, which it commits unless its caller named
    another."""
    call = call._replace(args_form="")
    name = plan_argument(spec.input_schema)
    if name not in call.args:
        return call
    args = dict(call.args)
    plan = args.pop(name)
    # Models write null or an empty text for what they leave out; a text that is no plan is refused with the plan.
    sent = plan.strip() if isinstance(plan, str) else ""
    return call._replace(args=args, plan_digest=call.plan_digest or sent)


def _reading(dialect: Dialect, spec: ToolSpec) -> Reading:
    key = f"{dialect.value} {spec.digest}"
    reading = _readings.get(key)
    if reading is None:
        reading = reading_of(dialect, spec.input_schema)
        _readings.put(key, reading)
    return reading


def restore_arguments(args: JsonObject, spec: ToolSpec, reading: Reading) -> JsonObject:
    return restore(args, spec.input_schema, reading, strict_json.loads).args if any(reading) else args


def repair_texts(call: Call, spec: ToolSpec, schemas: ToolSchemas) -> tuple[Call, tuple[str, ...]]:
    """Return the call with texts read as JSON where that makes its arguments valid, and their JSON Pointers; else the
    call itself and none."""
    if call.args_error is not None or schemas.input.is_valid(call.args):
        return call, ()
    repaired = restore(call.args, spec.input_schema, _REPAIR, strict_json.loads)
    if not repaired.read or not schemas.input.is_valid(repaired.args):
        return call, ()
    return call._replace(args=repaired.args), repaired.read


def repair_remark(call: Call, pointers: tuple[str, ...]) -> Evidence:
    """Return what a result says of repaired arguments."""
    said = ", ".join(pointers)
    summary = f"arguments were repaired: texts were read as JSON at {said}"
    return Evidence(EvidenceType.TEXT, call.call_id, summary, attributes={"repaired_arguments": said})
