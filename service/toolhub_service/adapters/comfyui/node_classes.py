"""A template held to what a server knows (GET /object_info)."""

from __future__ import annotations

from toolhub_service.adapters.comfyui.template import Template
from toolhub_service.domain.json import JsonObject


def problems_with(template: Template, object_info: JsonObject) -> tuple[str, ...]:
    """Why this server cannot run it as it is meant, a sentence or two each; empty when it can.

    `object_info`: class name to its description, as the server answers; it may hold the template's classes only.
    """
    raise NotImplementedError
