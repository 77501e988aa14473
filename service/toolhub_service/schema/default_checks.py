"""Which declared defaults fit their own subschema: one in seven of public tool schemas' defaults does not.

All are validated by one compiled schema: `{"properties": {"0": {"$ref": "<document>#/pointer/0"}, …}}` with the
document embedded under an id of its own, so that its references keep their meaning. It is bounded like any schema: a
hostile default is not run against a hostile schema.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.compiled import CompiledSchema
from toolhub_service.schema.references import MAX_SCHEMA_DEPTH, SchemaRefused, step_of

_EMBEDDED_ID: Final = "urn:toolhub:schema"


class DefaultChecks:
    """Validates values against subschemas of one document, named by the identity of their dict."""

    def __init__(self, document: dict[str, Any], schemas: list[int]) -> None:
        self._names = {schema: str(position) for position, schema in enumerate(dict.fromkeys(schemas))}
        pointers = _pointers(document, set(self._names))
        wrapped = wrap_document(document, {self._names[key]: path for key, path in pointers.items()})
        try:
            self._schema = CompiledSchema(dumps(wrapped), max_depth=MAX_SCHEMA_DEPTH + 2)
        except SchemaRefused:
            self._names = {}

    def fits(self, schema: int, value: Any) -> bool:
        """Return whether `value` is valid against the subschema; False where that is unknown."""
        name = self._names.get(schema)
        return name is not None and self._schema.is_valid({name: value})


def wrap_document(document: dict[str, Any], pointers: dict[str, str]) -> dict[str, Any]:
    dialect = {"$schema": document["$schema"]} if "$schema" in document else {}
    keyword = "id" if "draft-04" in str(document.get("$schema")) else "$id"
    own = str(document.get(keyword, "")).partition("#")[0]
    identifier = own if ":" in own else _EMBEDDED_ID
    return {
        **dialect,
        "properties": {name: {"$ref": f"{identifier}#{quote(path, safe='/~')}"} for name, path in pointers.items()},
        "definitions": {"document": {**document, keyword: identifier}},
    }


def _pointers(document: dict[str, Any], wanted: set[int]) -> dict[int, str]:
    """Return JSON Pointers of the containers with these identities."""
    found: dict[int, str] = {}
    pending: list[tuple[Any, str]] = [(document, "")]
    while pending:
        value, path = pending.pop()
        if id(value) in wanted:
            found[id(value)] = path
        if isinstance(value, dict):
            pending += [(item, path + step_of(name)) for name, item in value.items() if isinstance(item, dict | list)]
        elif isinstance(value, list):
            pending += [(item, f"{path}/{at}") for at, item in enumerate(value) if isinstance(item, dict | list)]
    return found
