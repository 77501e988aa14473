"""Step 7: does the result fit the output schema? Never applied to an error."""

from __future__ import annotations

from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.turns import in_thread
from toolhub_service.schema.tool_schemas import ToolSchemas


def validate_output(spec: ToolSpec, outcome: Outcome, schemas: ToolSchemas) -> None:
    """Raises OUTPUT_SCHEMA_INVALID: the tool ran, but what it answered cannot be trusted."""
    violations = schemas.validate_output(outcome.value)
    if violations:
        effect = "It may have had its effect: do not repeat it blindly." if spec.has_side_effects else ""
        raise refuse(
            ErrorKind.OUTPUT_SCHEMA_INVALID,
            f"{spec.name} answered something its own output schema forbids. {effect}".rstrip(),
            violations=violations,
        )


async def validate_aside(spec: ToolSpec, outcome: Outcome, schemas: ToolSchemas) -> None:
    """The same, in a thread where the result is large."""
    if outcome.is_large:
        await in_thread(validate_output, spec, outcome, schemas)
    else:
        validate_output(spec, outcome, schemas)
