"""What a node accepts in one input, as /object_info describes it, and whether it includes every value of a schema.

Three forms are in use: `["INT", {min, max, …}]`, choices in the old form `[["a", "b"], {…}]` and in the new one
`["COMBO", {"options": […]}]`. A server checks bounds and choices and ignores `step`, and so does this. Unknown types
pass, because custom nodes have widgets of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolhub_service.adapters.comfyui.workflow.arguments import Arguments
from toolhub_service.domain.json import JsonObject, JsonValue

_COMBO: Final = "COMBO"
_JSON_TYPES: Final = {
    "INT": frozenset({"integer"}),
    "FLOAT": frozenset({"integer", "number"}),
    "BOOLEAN": frozenset({"boolean"}),
    "STRING": frozenset({"string"}),
}
# ComfyUI's own types that only another node can provide.
_LINKED: Final = frozenset(
    "IMAGE MASK LATENT MODEL CLIP VAE CONDITIONING CONTROL_NET CLIP_VISION CLIP_VISION_OUTPUT STYLE_MODEL NOISE SIGMAS "
    "GUIDER SAMPLER UPSCALE_MODEL AUDIO VIDEO MESH".split()
)
_CONST_TYPES: Final = {int: "integer", float: "number", str: "string"}
_SHOWN_MAX: Final = 8
_DEPTH_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of one class."""

    types: tuple[str, ...]
    """Such as `INT`, or `IMAGE`; several where it accepts any of them."""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[JsonValue, ...] | None = None
    """None: no list of choices, or one that the server does not report."""
    is_upload: bool = False
    """Whether it names an uploaded file."""

    @property
    def is_link(self) -> bool:
        """Return whether it can only come from another node."""
        return _LINKED.issuperset(self.types)

    @property
    def is_number(self) -> bool:
        return not {"INT", "FLOAT"}.isdisjoint(self.types)


def read_input_spec(described: JsonValue) -> InputSpec | None:
    """Return the input's terms; None when they are described in an unknown form."""
    if not isinstance(described, list | tuple) or not described:
        return None
    kind = described[0]
    options: Mapping[str, Any] = described[1] if len(described) > 1 and isinstance(described[1], Mapping) else {}
    is_upload = any(name.endswith("_upload") and value is True for name, value in options.items())
    if isinstance(kind, list | tuple):
        return InputSpec((_COMBO,), choices=tuple(kind), is_upload=is_upload)
    if not isinstance(kind, str):
        return None
    if kind == _COMBO:
        listed = options.get("options")
        is_listed = isinstance(listed, list | tuple) and not options.get("multiselect")
        return InputSpec(
            (kind,), choices=tuple(listed) if is_listed and listed is not None else None, is_upload=is_upload
        )
    bounds = _number(options.get("min")), _number(options.get("max"))
    return InputSpec(tuple(part.strip() for part in kind.split(",")), *bounds, is_upload=is_upload)


def literal_mismatch(value: JsonValue, terms: InputSpec) -> str:
    """Return the same as `mismatch` for one value. Text that reads like a number counts as one, as on the server."""
    if terms.choices is not None:
        return "" if value in terms.choices else f"the server has no {value!r}: {_list_choices(terms.choices)}"
    if terms.is_number and isinstance(value, int | float) and not isinstance(value, bool):
        return _out_of_bounds(value, value, terms)
    return ""


def mismatch(schema: JsonObject, arguments: Arguments, terms: InputSpec, depth: int = 0) -> str:
    """Return why the node would refuse a value that the schema allows, and what to write; empty when it would refuse
    none."""
    schema = arguments.follow_reference(schema)
    if depth < _DEPTH_MAX:
        for word in ("anyOf", "oneOf"):
            branches = schema.get(word)
            if isinstance(branches, list | tuple) and branches:
                parts = [{**schema, word: (), **branch} for branch in branches if isinstance(branch, Mapping)]
                return next(filter(None, (mismatch(part, arguments, terms, depth + 1) for part in parts)), "")
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list | tuple):
        return next(filter(None, (_value_mismatch(value, terms) for value in values)), "")
    if terms.choices is not None:
        return f"the node takes only some values: list them with `enum`: {_list_choices(terms.choices)}"
    return _type_mismatch(schema, arguments, terms)


def _value_mismatch(value: JsonValue, terms: InputSpec) -> str:
    """Return why the node refuses a value that a caller may choose, also by its type; empty when it accepts it."""
    # null keeps the graph's own value.
    if value is None or (terms.choices is None and not _JSON_TYPES.keys() >= set(terms.types)):
        return ""
    kind = "boolean" if isinstance(value, bool) else _CONST_TYPES.get(type(value), "")
    if terms.choices is None and not any(kind in _JSON_TYPES[name] for name in terms.types):
        return f"{value!r} is not of a type that the node accepts: {'/'.join(terms.types)}"
    return literal_mismatch(value, terms)


def _type_mismatch(schema: JsonObject, arguments: Arguments, terms: InputSpec) -> str:
    if not _JSON_TYPES.keys() >= set(terms.types):
        return ""
    allowed = frozenset().union(*(_JSON_TYPES[kind] for kind in terms.types))
    types = arguments.types(schema)
    if types is None or not types <= allowed | {"null"}:
        return f"the node takes {'/'.join(terms.types)}: say `type: {' or '.join(sorted(allowed))}`"
    if not types & {"integer", "number"}:
        return ""
    lowest = max(_bounds(schema, "minimum", "exclusiveMinimum"), default=None)
    return _out_of_bounds(lowest, min(_bounds(schema, "maximum", "exclusiveMaximum"), default=None), terms)


def _out_of_bounds(lowest: float | None, highest: float | None, terms: InputSpec) -> str:
    if terms.minimum is not None and (lowest is None or lowest < terms.minimum):
        least = _number_text(terms.minimum)
        return f"the node takes {least} and more: say `minimum: {least}`"
    if terms.maximum is not None and (highest is None or highest > terms.maximum):
        most = _number_text(terms.maximum)
        return f"the node takes at most {most}: say `maximum: {most}` or less"
    return ""


def _bounds(schema: JsonObject, *words: str) -> Iterable[float]:
    """Return the bounds under these keywords. An exclusive one counts as inclusive, which is wrong by less than one
    step."""
    found = (_number(schema.get(word)) for word in words)
    return [number for number in found if number is not None]


def _number(value: object) -> float | None:
    """Return the number, else None. Integers stay integers, as a seed's bound has more digits than a double."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number_text(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _list_choices(choices: Sequence[JsonValue]) -> str:
    shown = ", ".join(str(choice)[:64] for choice in choices[:_SHOWN_MAX])
    more = len(choices) - _SHOWN_MAX
    return f"it has {shown}{f' and {more} more' if more > 0 else ''}" if choices else "it has none"
