"""The templates of a source that can be called now, each with the servers that can run it.

A tool names its template with the digest, so a changed file is another tool, and a call runs exactly what was looked at
when it was judged. Those that a reading has replaced are kept for a while, for calls that are on their way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from toolhub_service.adapters.comfyui.template import Template

_KEPT_MAX: Final = 1_024
_DIGEST_CHARS: Final = 16


class ShelvedTemplate(NamedTuple):
    template: Template
    backends: frozenset[str]
    """Names of the servers that have all it needs."""


def resource_id(template: Template) -> str:
    return f"{template.name}@{template.sha256[:_DIGEST_CHARS]}"


class TemplateShelf:
    def __init__(self) -> None:
        self._shelved: dict[str, ShelvedTemplate] = {}

    def put(self, found: Mapping[str, ShelvedTemplate]) -> None:
        """What the latest reading has brought, by resource id."""
        kept = {key: shelved for key, shelved in self._shelved.items() if key not in found}
        self._shelved = dict([*kept.items(), *found.items()][-max(_KEPT_MAX, len(found)) :])

    def get(self, key: str) -> ShelvedTemplate | None:
        return self._shelved.get(key)
