"""What a node takes in one input, as /object_info tells it, and whether every value of a schema is one of those.

Three forms are in use: `["INT", {min, max, …}]`, choices in the old form `[["a", "b"], {…}]` and in the new one
`["COMBO", {"options": […]}]`. A server checks bounds and choices, and takes no notice of `step`, nor does this.
Types that nothing is known of are let pass: custom nodes bring widgets of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolhub_service.adapters.comfyui.arguments import Arguments
from toolhub_service.domain.json import JsonObject, JsonValue

_COMBO: Final = "COMBO"
_JSON_TYPES: Final = {
    "INT": frozenset({"integer"}),
    "FLOAT": frozenset({"integer", "number"}),
    "BOOLEAN": frozenset({"boolean"}),
    "STRING": frozenset({"string"}),
}
_LINKED: Final = frozenset(
    {
        *("IMAGE", "MASK", "LATENT", "MODEL", "CLIP", "VAE", "CONDITIONING", "CONTROL_NET", "CLIP_VISION", "NOISE"),
        *(
            "CLIP_VISION_OUTPUT",
            "STYLE_MODEL",
            "SIGMAS",
            "GUIDER",
            "SAMPLER",
            "UPSCALE_MODEL",
            "AUDIO",
            "VIDEO",
            "MESH",
        ),
    }
)
"""Types of ComfyUI's own that only another node can give."""
_KINDS: Final = {int: "integer", float: "number", str: "string"}
_SHOWN_MAX: Final = 8
_DEPTH_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class InputTerms:
    """One input of one class."""

    types: tuple[str, ...]
    """Such as `INT`, or `IMAGE`; several where it takes any of them."""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[JsonValue, ...] | None = None
    """None: not one of a list, or of one that the server does not tell."""
    is_upload: bool = False
    """It names a file that was uploaded."""

    @property
    def is_link(self) -> bool:
        """Whether it can only come from another node."""
        return _LINKED.issuperset(self.types)

    @property
    def is_number(self) -> bool:
        return not {"INT", "FLOAT"}.isdisjoint(self.types)


def read_terms(told: JsonValue) -> InputTerms | None:
    """None when it is told in a form that is not known."""
    if not isinstance(told, list | tuple) or not told:
        return None
    kind = told[0]
    options: Mapping[str, Any] = told[1] if len(told) > 1 and isinstance(told[1], Mapping) else {}
    is_upload = any(name.endswith("_upload") and value is True for name, value in options.items())
    if isinstance(kind, list | tuple):
        return InputTerms((_COMBO,), choices=tuple(kind), is_upload=is_upload)
    if not isinstance(kind, str):
        return None
    if kind == _COMBO:
        listed = options.get("options")
        is_told = isinstance(listed, list | tuple) and not options.get("multiselect")
        return InputTerms(
            (kind,), choices=tuple(listed) if is_told and listed is not None else None, is_upload=is_upload
        )
    bounds = _number(options.get("min")), _number(options.get("max"))
    return InputTerms(tuple(part.strip() for part in kind.split(",")), *bounds, is_upload=is_upload)


def misfit(schema: JsonObject, arguments: Arguments, terms: InputTerms) -> str:
    """Why a value that the schema allows is refused by the node, and what to write; empty when none is."""
    return _misfit(schema, arguments, terms, 0)


def literal_misfit(value: JsonValue, terms: InputTerms) -> str:
    """The same for one value. Text that reads like a number is taken for one, as the server does."""
    if terms.choices is not None:
        return "" if value in terms.choices else f"the server has no {value!r}: {_listed(terms.choices)}"
    if terms.is_number and isinstance(value, int | float) and not isinstance(value, bool):
        return _out_of_bounds(value, value, terms)
    return ""


def _misfit(schema: JsonObject, arguments: Arguments, terms: InputTerms, depth: int) -> str:
    schema = arguments.resolved(schema)
    if depth < _DEPTH_MAX:
        for word in ("anyOf", "oneOf"):
            branches = schema.get(word)
            if isinstance(branches, list | tuple) and branches:
                parts = [{**schema, word: (), **branch} for branch in branches if isinstance(branch, Mapping)]
                return next(filter(None, (_misfit(part, arguments, terms, depth + 1) for part in parts)), "")
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list | tuple):
        return next(filter(None, (_value_misfit(value, terms) for value in values)), "")
    if terms.choices is not None:
        return f"the node takes only some values: list them with `enum`: {_listed(terms.choices)}"
    return _type_misfit(schema, arguments, terms)


def _value_misfit(value: JsonValue, terms: InputTerms) -> str:
    """Of one value that a caller may choose: its type counts, too. null is the graph's own value."""
    if value is None or (terms.choices is None and not _JSON_TYPES.keys() >= set(terms.types)):
        return ""
    kind = "boolean" if isinstance(value, bool) else _KINDS.get(type(value), "")
    if terms.choices is None and not any(kind in _JSON_TYPES[name] for name in terms.types):
        return f"{value!r} is none of what the node takes: {'/'.join(terms.types)}"
    return literal_misfit(value, terms)


def _type_misfit(schema: JsonObject, arguments: Arguments, terms: InputTerms) -> str:
    if not _JSON_TYPES.keys() >= set(terms.types):
        return ""
    allowed = frozenset().union(*(_JSON_TYPES[kind] for kind in terms.types))
    types = arguments.types(schema)
    if types is None or not types <= allowed | {"null"}:
        return f"the node takes {'/'.join(terms.types)}: say `type: {' or '.join(sorted(allowed))}`"
    if not types & {"integer", "number"}:
        return ""
    return _out_of_bounds(_lowest(schema), _highest(schema), terms)


def _out_of_bounds(lowest: float | None, highest: float | None, terms: InputTerms) -> str:
    if terms.minimum is not None and (lowest is None or lowest < terms.minimum):
        return f"the node takes {_shown(terms.minimum)} and more: say `minimum: {_shown(terms.minimum)}`"
    if terms.maximum is not None and (highest is None or highest > terms.maximum):
        return f"the node takes at most {_shown(terms.maximum)}: say `maximum: {_shown(terms.maximum)}` or less"
    return ""


def _lowest(schema: JsonObject) -> float | None:
    return max((bound for bound in _bounds(schema, "minimum", "exclusiveMinimum")), default=None)


def _highest(schema: JsonObject) -> float | None:
    return min((bound for bound in _bounds(schema, "maximum", "exclusiveMaximum")), default=None)


def _bounds(schema: JsonObject, *words: str) -> Iterable[float]:
    """An exclusive bound counts as the bound itself, which errs by less than one step."""
    found = (_number(schema.get(word)) for word in words)
    return [number for number in found if number is not None]


def _number(value: object) -> float | None:
    """Integers stay what they are: a seed's bound has more digits than a double."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _shown(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _listed(choices: Sequence[JsonValue]) -> str:
    shown = ", ".join(str(choice)[:64] for choice in choices[:_SHOWN_MAX])
    more = len(choices) - _SHOWN_MAX
    return f"it has {shown}{f' and {more} more' if more > 0 else ''}" if choices else "it has none"
