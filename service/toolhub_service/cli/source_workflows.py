"""An n8n or a ComfyUI server, in the words of a command line, as a source of this hub.

What it becomes is checked as `toolhub workflows check` checks it, before anything is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolhub_service.app.source_rules import SourceInvalid
from toolhub_service.app.sources_file import to_source
from toolhub_service.app.workflow_checks import check_sources
from toolhub_service.cli.source_converting import Converted, NotConvertible, begun, put_url, reference_of, set_aside
from toolhub_service.settings.sources import SourcesDocument

_SHOWN_MAX = 3


def convert_workflows(name: str, server: dict[str, Any], secrets_folder: Path) -> Converted:
    """`server`: `kind`, `url`, `headers`, and of n8n `api_key`, `webhooks` and `jobs` (path by name) and `discover`
    (tags; None: not), of ComfyUI `templates`. Raises NotConvertible."""
    found = begun(name)
    found.entry["kind"] = server["kind"]
    put_url(found, server["url"], server["headers"], secrets_folder)
    if server["kind"] == "n8n":
        _put_n8n(found, server, secrets_folder)
    else:
        found.entry["templates"] = [str(Path(path).expanduser().absolute()) for path in server["templates"]]
    _check(found)
    return found


def _put_n8n(found: Converted, server: dict[str, Any], folder: Path) -> None:
    key = server["api_key"]
    if key:
        found.entry["api_key"] = reference_of(key) or set_aside(found, "api_key", key, "", folder)
    workflows = {name: {"webhook": path.strip("/")} for name, path in server["webhooks"].items()}
    workflows |= {name: {"webhook": path.strip("/"), "mode": "async"} for name, path in server["jobs"].items()}
    if workflows:
        found.entry["workflows"] = workflows
    if server["discover"] is not None:
        found.entry["discover"] = {"tags": list(server["discover"])} if server["discover"] else {}


def _check(found: Converted) -> None:
    """Raises NotConvertible; what works and is probably not meant becomes notes."""
    try:
        source = to_source(found.name, found.entry)
    except SourceInvalid as invalid:
        raise NotConvertible(str(invalid)) from invalid
    report = check_sources(SourcesDocument(sources={found.name: source}), None)
    wrong = [*report.problems, *(f"{tool.name}: {problem}" for tool in report.tools for problem in tool.problems)]
    if wrong:
        more = f"; and {len(wrong) - _SHOWN_MAX} more" if len(wrong) > _SHOWN_MAX else ""
        raise NotConvertible("; ".join(wrong[:_SHOWN_MAX]) + more)
    found.notes += [f"{tool.name}: {warning}" for tool in report.tools for warning in tool.warnings]
    found.notes += report.notes
