"""`toolhub policy import …`: permission files of older tools as policy.yaml."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import EXIT_REFUSED, explaining, print_prose, print_text

if TYPE_CHECKING:
    from toolhub_service.faces.permissions import Imported

_FILE_MAX_BYTES = 1024 * 1024
_NODES_MAX = 20_000
_FILE = click.Path(path_type=Path, dir_okay=False)
_OUTPUT = click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this new file instead."
)
_STRICT = click.option("--strict", is_flag=True, help="Exit 1 when something could not be translated.")


@click.group("import", cls=SuggestingGroup)
def import_group() -> None:
    """Translate the permissions of older tools into a policy.

    Entries without an equivalent are reported, never granted.
    """


@import_group.command("local-tools")
@click.argument("file", type=_FILE)
@click.option("--principal", default="local", show_default=True, help="Principal that calls on behalf of the users.")
@click.option("--base", default="", help="Folder that becomes the workspace: absolute paths of FILE lie below it.")
@_OUTPUT
@_STRICT
def local_tools(file: Path, principal: str, base: str, output: Path | None, strict: bool) -> None:
    """Print the policy of a permission file of local-tools.

    FILE is YAML or JSON: {"users": {ID: {"permissions": ["read:file"], "paths": […], "commands": […], "hosts": […]}}}.
    Each user becomes rules on `context.user_id`, which the face local-tools sets from `user_id`.

    \b
    Example:
      toolhub policy import local-tools permissions.yaml --output policy.yaml
    """
    from toolhub_service.faces.permissions import from_local_tools

    _write(from_local_tools, file, output, strict, principal, base)


@import_group.command("openclaw")
@click.argument("file", type=_FILE)
@_OUTPUT
@_STRICT
@settings_options
def openclaw(file: Path, output: Path | None, strict: bool, **options: Any) -> None:
    """Print the policy of OpenClaw's lists of what each agent may use.

    FILE is YAML or JSON: {"agents": {AGENT: {"allow": […], "deny": […], "require_approval": […]}}}, or for each agent
    {TOOL: "allow" | "deny" | "require_approval"}. Agents are principals of the hub.

    \b
    Example:
      toolhub policy import openclaw agents.yaml --output policy.yaml
    """
    from toolhub_service.app.offline import configured_tools
    from toolhub_service.faces.openclaw import from_openclaw

    tools = asyncio.run(configured_tools(read_settings(**options)))
    _write(from_openclaw, file, output, strict, tools)


def _write(translate: Any, file: Path, output: Path | None, strict: bool, *more: Any) -> None:
    from toolhub_service.faces.permissions import ImportRefused
    from toolhub_service.policy.parsing import InvalidPolicy, parse_policy

    with explaining(ImportRefused, place=file):
        imported: Imported = translate(_read_document(file), *more)
    text = imported.text(
        f"Translated from {file.name} by `toolhub policy import`. Check it, then `toolhub policy check`."
    )
    with explaining(InvalidPolicy, place=file):
        # The translation is validated as a policy before anybody uses it.
        parse_policy(text)
    if output is None:
        print_text(text, nl=False)
    else:
        with explaining(OSError, place=output):
            # Mode 0600 and never over another file, like `toolhub policy init`.
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as written:
                written.write(text)
    for warning in imported.warnings:
        print_prose(warning, "  ", "!", "yellow", err=True)
    if strict and imported.warnings:
        sys.exit(EXIT_REFUSED)


def _read_document(file: Path) -> dict[str, Any]:
    """Return the content. Raises ImportRefused."""
    import yaml

    from toolhub_service.faces.permissions import ImportRefused
    from toolhub_service.guards.yaml_faults import yaml_problem
    from toolhub_service.guards.yaml_scalars import load_as_written

    try:
        with file.open("rb") as opened:
            # One more than the limit, to detect a larger file.
            data = opened.read(_FILE_MAX_BYTES + 1)
        if len(data) > _FILE_MAX_BYTES:
            raise ImportRefused(f"the file has more than {_FILE_MAX_BYTES:,} bytes")
        text = data.decode("utf-8")
        # safe_load keeps the last of two equal keys: half of the permissions would be silently lost.
        _refuse_doubled(yaml.compose(text, Loader=yaml.SafeLoader))
        value = load_as_written(text)
    except OSError as missing:
        raise ImportRefused(missing.strerror or "it cannot be read") from missing
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as broken:
        raise ImportRefused(f"not YAML or JSON: {yaml_problem(broken)}") from broken
    if not isinstance(value, dict):
        raise ImportRefused("expected an object")
    return value


def _refuse_doubled(root: Any) -> None:
    """Refuse duplicate keys: the last would count, whatever the first forbids. Raises ImportRefused."""
    from toolhub_service.faces.permissions import ImportRefused

    waiting = [root]
    # It grows while it is iterated, which traverses the whole tree.
    for node in waiting:
        if len(waiting) > _NODES_MAX:
            raise ImportRefused(f"the file has more than {_NODES_MAX:,} values")
        if node is None or isinstance(node.value, str):
            continue
        keys = [entry[0].value for entry in node.value if isinstance(entry, tuple)]
        if doubled := next((key for place, key in enumerate(keys) if key in keys[:place]), None):
            raise ImportRefused(f"{str(doubled)[:100]!r} is named twice")
        for entry in node.value:
            waiting += [entry[1]] if isinstance(entry, tuple) else [entry]
