"""The schema of a result, made from the outputs that a sidecar declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from toolhub_service.adapters.comfyui.template import OutputTerms, OutputType
from toolhub_service.domain.json import JsonObject

FILE_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "required": ["artifact", "media_type", "bytes", "sha256", "filename"],
    "properties": {
        "artifact": {"type": "string", "description": "Id of the artifact that holds it."},
        "media_type": {"type": "string", "description": "As its bytes say."},
        "bytes": {"type": "integer"},
        "sha256": {"type": "string"},
        "filename": {"type": "string", "description": "As the server named it, without folders."},
    },
}


def result_schema(outputs: Sequence[OutputTerms]) -> JsonObject:
    """`{<output>: [file, …]}`; of text outputs `[text, …]`."""
    return {
        "type": "object",
        "required": [output.name for output in outputs],
        "properties": {output.name: _of(output) for output in outputs},
        "additionalProperties": False,
    }


def _of(output: OutputTerms) -> JsonObject:
    items: JsonObject = {"type": "string"} if output.type is OutputType.TEXT else FILE_SCHEMA
    return {"type": "array", "minItems": output.min_items, "maxItems": output.max_items, "items": items}
