"""Completion asks the hub while somebody waits at a prompt: quickly, or not at all, and never with an error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

    from toolhub_service.cli.connection import Connection

WAIT_S = 1.0
MOST = 200
"""Completions of one kind that are asked for."""


@contextmanager
def asked(context: click.Context) -> Iterator[Connection]:
    """The hub that the command would ask, as far as its options have been typed. Raises click.ClickException."""
    from toolhub_service.cli.connection import DEFAULT_ADDRESS, connected

    def given(name: str, variable: str) -> str:
        return str(context.params.get(name) or os.environ.get(variable, ""))

    address = given("address", "TOOLHUB_ADDRESS") or DEFAULT_ADDRESS
    with connected(address, given("api_key", "TOOLHUB_API_KEY"), context.params.get("ca_file"), WAIT_S) as connection:
        yield connection
