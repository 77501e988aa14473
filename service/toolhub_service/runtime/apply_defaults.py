"""Step 3: what was left out? The hub fills it in from the schema, never the model."""

from __future__ import annotations

from toolhub_service.domain.call import Call, PlannedCall
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.schema.canonical_json import digest_of, dumps
from toolhub_service.schema.tool_schemas import ToolSchemas


def apply_defaults(call: Call, spec: ToolSpec, schemas: ToolSchemas) -> PlannedCall:
    """The complete call, still valid: a default that would break the arguments is left out."""
    args, filled = schemas.complete(call.args)
    text = dumps(args)
    return PlannedCall(call, spec, args, filled, text, digest_of(text))
