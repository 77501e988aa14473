"""Any JSON at all as a schema: accepted within bounds or refused with a reason, never another exception."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.schema.references import SchemaRefused
from toolhub_service.schema.tool_schemas import ToolSchemas

_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_KEYWORDS = st.sampled_from(
    "$ref $dynamicRef $recursiveRef $id id $schema $anchor $dynamicAnchor $recursiveAnchor $defs definitions "
    "properties patternProperties additionalProperties unevaluatedProperties propertyNames items prefixItems "
    "additionalItems contains allOf anyOf oneOf not if then else dependentSchemas dependencies dependentRequired "
    "required enum const default type pattern format minimum uniqueItems a".split()
)
_TEXTS = st.sampled_from(
    [
        *(
            "#",
            "#/",
            "#/$defs/a",
            "#a",
            "#/properties/a/0",
            "a",
            "http://[x",
            "http://[x#y",
            "urn:x",
            "//",
            "%",
            "#%zz",
            "",
        ),
        *("string", "object", "(", "(?=a)", "^a$", "https://json-schema.org/draft/2019-09/schema"),
        *("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#", "\ud800"),
    ]
)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS
_ANYTHING = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYWORDS, inner, max_size=4), max_leaves=25
)


@_UNHURRIED
@given(st.dictionaries(_KEYWORDS, _ANYTHING, max_size=5), st.dictionaries(_KEYWORDS, _ANYTHING, max_size=3))
def test_any_schema_and_any_value_end_in_a_verdict(schema: dict[str, Any], value: dict[str, Any]) -> None:
    try:
        schemas = ToolSchemas(ToolSpec("a/b", ToolKind.CORE, "", schema, {}, digest="x"))
    except SchemaRefused as refused:
        assert refused.advice.strip()  # noqa: PT017 - either way is right, silence is not
        return
    violations = schemas.validate_input(value)
    assert len(violations) <= 5
    if not violations:
        completed, _ = schemas.complete(value)
        assert schemas.validate_input(completed) == ()
