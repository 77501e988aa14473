"""What may be bound to what: the argument's schema decides, so that no valid call can do more than was meant."""

from __future__ import annotations

from typing import Final

from toolhub_service.adapters.comfyui.arguments import Arguments, is_artifact
from toolhub_service.adapters.comfyui.sidecar import BindingWords, SeedWords
from toolhub_service.adapters.comfyui.template import PREFIX_INPUT, Transform
from toolhub_service.domain.json import JsonObject

_LOADERS: Final = frozenset({"LoadImage", "LoadImageMask", "LoadImageOutput", "LoadAudio", "LoadVideo", "Load3D"})
"""Classes that read a file of the server: a name of the caller's choice would open anybody's."""
_FILES: Final = frozenset({"image", "audio", "file", "model_file"})


def binding_misfit(said: BindingWords, arguments: Arguments) -> str:
    """Why the argument may not go there, and what to do; empty when it may."""
    declared = arguments.at(said.source)
    if declared is None:
        return f"input_schema declares no argument {said.source}: add it there, or correct `from`"
    name = said.target.rpartition("/")[2]
    if name == PREFIX_INPUT:
        return f"{said.target} names files, which is not the caller's to choose: force it instead"
    schema = arguments.resolved(declared)
    transform = Transform(said.transform)
    if (transform is Transform.UPLOAD) != is_artifact(schema):
        return f"{said.source}: `format: hub-artifact` and `transform: upload` belong together: say both or neither"
    if transform is Transform.UPLOAD:
        return "" if arguments.types(schema) == frozenset({"string"}) else f"{said.source}: say `type: string`"
    if transform is Transform.NONE and said.expect_class in _LOADERS and name in _FILES and "enum" not in schema:
        return (
            f"{said.target} opens a file of the server, and a name of the caller's choice opens anybody's: say "
            f"`format: hub-artifact` of {said.source} and `transform: upload`, or list the names with `enum`"
        )
    return _unless_literal(said.source, arguments, schema) if transform is Transform.NONE else ""


def seed_misfit(said: SeedWords, arguments: Arguments) -> str:
    """The same for a seed that a caller may give."""
    schema = arguments.at(said.source)
    if schema is None:
        return f"input_schema declares no argument {said.source}: add it there, or correct `from`"
    types = arguments.types(schema)
    if types is None or not types <= {"integer", "null"}:
        return f"{said.source}: a seed is a whole number: say `type: integer`"
    if arguments.is_given(said.source):
        return f"{said.source} is required or has a default, so nothing is ever drawn: bind it under `bindings`"
    return ""


def _unless_literal(source: str, arguments: Arguments, schema: JsonObject) -> str:
    if arguments.is_literal(schema):
        return ""
    return (
        f"{source} may be an array or an object, which ComfyUI takes for a link: give it a `type` of string, number, "
        "integer or boolean, or bind it as text with `transform: json`"
    )
