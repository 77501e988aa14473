"""Completion of sources' names and of tools that have pins: asked of the hub quickly, or not at all."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_source(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Sources whose names begin so, each with its state; none when the hub does not say."""
    from click.shell_completion import CompletionItem

    from toolhub.v1 import registry_service_pb2 as pb
    from toolhub_service.cli.completion_asking import WAIT_S, asked
    from toolhub_service.cli.source_view import state_of

    with suppress(click.ClickException), asked(context) as connection:
        request = pb.ListSourcesRequest()
        found = connection.registry.ListSources(request, timeout=WAIT_S, metadata=connection.metadata).sources
        fitting = [status for status in found if status.source.startswith(incomplete)]
        return [CompletionItem(status.source, help=state_of(status).lower()) for status in fitting]
    return []


def complete_written(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Sources in sources.yaml whose names begin so; no hub is asked."""
    from click.shell_completion import CompletionItem

    from toolhub_service.app.sources_file import SourcesFile
    from toolhub_service.cli.settings_options import read_settings
    from toolhub_service.cli.source_files import sources_path
    from toolhub_service.settings.loading import SettingsInvalid

    given = context.params
    with suppress(click.ClickException, SettingsInvalid):
        settings = read_settings(given.get("config_file"), given.get("data_dir"))
        found = SourcesFile(sources_path(settings, given.get("sources_file"))).load().sources
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]
    return []


def complete_pinned(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tools with pins whose names begin so, those that wait for a decision first."""
    from click.shell_completion import CompletionItem

    from toolhub.v1 import pin_pb2
    from toolhub.v1 import registry_service_pb2 as pb
    from toolhub_service.cli.completion_asking import MOST, WAIT_S, asked

    with suppress(click.ClickException), asked(context) as connection:
        found: dict[str, str] = {}
        for states in ([pin_pb2.PIN_STATE_PENDING], []):
            request = pb.ListPinsRequest(page_size=MOST, states=states)
            pins = connection.registry.ListPins(request, timeout=WAIT_S, metadata=connection.metadata).pins
            for pin in pins:
                found.setdefault(pin.tool, pin_pb2.PinState.Name(pin.state).removeprefix("PIN_STATE_").lower())
        return [CompletionItem(tool, help=state) for tool, state in found.items() if tool.startswith(incomplete)]
    return []
