"""Where the events of a command come from: a running hub, or the files of one that may be stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import click

from toolhub.v1 import event_pb2
from toolhub_service.cli.audit.reading import events
from toolhub_service.cli.config import read_settings
from toolhub_service.cli.connection.client import connect_by_options
from toolhub_service.cli.terminal.output import explaining

EventReader: TypeAlias = Callable[[event_pb2.EventFilter], Iterable[event_pb2.Event]]
"""Returns every event that matches, oldest first."""


def log_options(command: Any) -> Any:
    """Add the options that name the files of a hub, as `data_dir` and `config_file`."""
    # Without the variable of --config: a user who has set it for `toolhub serve` still asks the running hub.
    config = click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        help="Read the files that this YAML file of settings names, instead of asking a hub.",
    )
    folder = click.option(
        "--data-dir",
        type=click.Path(path_type=Path),
        help="Read the files in this data folder instead of asking a hub.",
    )
    return folder(config(command))


def is_offline(options: Mapping[str, Any]) -> bool:
    """Return whether the options name files."""
    return options["data_dir"] is not None or options["config_file"] is not None


def check_without_tenant(options: Mapping[str, Any]) -> None:
    """Raise click.UsageError when files are to be read for one tenant."""
    if options.get("tenant"):
        raise click.UsageError("--tenant needs a hub, whose policy says whose tenant a principal is.")


@contextmanager
def opened_log(options: Mapping[str, Any]) -> Iterator[EventReader]:
    """Yield the reader of the log that `log_options` and `connection_options` name. Raises click.ClickException."""
    from toolhub_service.app.offline import OfflineRefused

    if is_offline(options):
        check_without_tenant(options)
        with explaining(OfflineRefused):
            yield _file_reader(options)
        return
    with connect_by_options(options) as connection:
        yield lambda where: events(connection, where)


def _file_reader(options: Mapping[str, Any]) -> EventReader:
    from toolhub_service.app.offline import audit_events
    from toolhub_service.transport.convert.records import from_event, to_filter

    settings = read_settings(options["config_file"], options["data_dir"])
    return lambda where: map(from_event, audit_events(settings, to_filter(where)))
