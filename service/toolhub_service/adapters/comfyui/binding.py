"""From a template and a call's arguments to the graph that is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from toolhub_service.adapters.comfyui.template import BoundGraph, Template, Upload
from toolhub_service.domain.json import JsonObject


def uploads_of(template: Template, args: JsonObject) -> tuple[Upload, ...]:
    """Which artifacts must be uploaded first; each artifact once."""
    raise NotImplementedError


def bound(
    template: Template,
    args: JsonObject,
    *,
    uploads: Mapping[str, str],
    seeds: Callable[[], int],
    names: Mapping[str, str],
) -> BoundGraph:
    """`args` are valid and complete. `uploads`: artifact id to the name that the server gave; `seeds` draws one below
    2^53; `names`: `tenant` and `job_id`, of letters, digits, `_` and `-` only.

    Raises ToolFailure INVALID_INPUT for a value that would be more than a literal (a list is a link to ComfyUI).
    """
    raise NotImplementedError
