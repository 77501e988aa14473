"""Step 2: do the arguments fit the input schema? Judged as sent, before any default is filled in."""

from __future__ import annotations

from toolhub_service.domain.call import Call
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.schema.tool_schemas import ToolSchemas


def validate_input(call: Call, spec: ToolSpec, schemas: ToolSchemas) -> None:
    """Raises INPUT_SCHEMA_INVALID with violations that a model can repair from, or INVALID_INPUT."""
    if call.args_error is not None:
        raise ToolFailure(call.args_error)
    violations = schemas.validate_input(call.args)
    if violations:
        told = " ".join(f"{each.message} {each.hint}".rstrip() for each in violations)
        message = f"The arguments do not fit {call.tool}: {told}"
        raise refuse(ErrorKind.INPUT_SCHEMA_INVALID, message, violations=violations)
    if spec.has_side_effects and not call.purpose.strip():
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"{call.tool} can change something: say why you call it in `purpose`; it goes into the audit log.",
            field="purpose",
        )
