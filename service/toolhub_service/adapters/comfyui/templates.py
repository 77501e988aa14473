"""Templates from files and folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolhub_service.adapters.comfyui.template import Template


def load_template(path: Path) -> Template:
    """The template that this sidecar (JSON or YAML) and the graph it names are. Raises TemplateInvalid."""
    raise NotImplementedError


def load_templates(places: Sequence[str]) -> tuple[list[Template], list[str]]:
    """Templates of sidecar files and of folders of them, in order of their files; and what could not be read, a
    sentence each that begins with the file. Of two with names that read alike the second is left out and told."""
    raise NotImplementedError
