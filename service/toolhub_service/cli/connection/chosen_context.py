"""Selects the context of a command and what applies of it.

Options take precedence over the environment, and the environment over the context. `--context` is an option, so its
context takes precedence over the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from toolhub_service.cli.connection.contexts import Context, read_contexts, read_private
from toolhub_service.cli.connection.hub_options import BY_DEFAULT, BY_FILE, FILES, Given, plain

_KEY_MAX_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ContextKey:
    """The credential of a context, read when it is needed."""

    name: str
    context: Context
    for_mcp: bool = False
    """Whether it is for the hub's MCP endpoint, which has its own tokens."""

    def __call__(self) -> str:
        """Return the key or access token; empty when the context has none. Raises click.ClickException."""
        if self.context.login is not None:
            from toolhub_service.cli.connection.tokens import access_token

            return access_token(self.name, self.context.login, for_mcp=self.for_mcp)
        if self.context.api_key_env:
            return self._of_environment()
        return self._of_file() if self.context.api_key_file else ""

    def _of_environment(self) -> str:
        name = self.context.api_key_env
        if key := os.environ.get(name, "").strip():
            return key
        raise click.ClickException(f"The context {self.name} takes its key from {name}, which is not set: export it.")

    def _of_file(self) -> str:
        path = Path(self.context.api_key_file)
        return read_private(path, _KEY_MAX_BYTES, f"The context {self.name} takes its key from {path}").strip()


def complete_options(given: Given) -> dict[str, Any]:
    """Return the connection's options, with the context's in place of those with a lower rank.

    `given`: address, tls, ca_file, cert_file, key_file, api_key and context_name, each with its rank. `context_name` of
    the answer is the context in use or None, `api_key` may be a ContextKey. An address of a higher rank than the
    context names another hub: the context is ignored with its credential, which must not be sent there. Raises
    click.ClickException.
    """
    if (without := plain(given)) is not None:
        return without
    values: dict[str, Any] = {name: value for name, (value, _) in given.items()}
    asked, rank = given["context_name"]
    ranks = {name: rank if value is not None else BY_DEFAULT for name, (value, rank) in given.items()}
    rank = rank if asked else BY_FILE
    contexts = read_contexts()
    name = asked or contexts.current
    # An address of higher rank is another hub: it must not get this context's credential.
    if not name or ranks["address"] > rank:
        return {**values, "context_name": None}
    context = contexts.find(name)
    # Mixed, a given CA and the context's client certificate would belong to two different hubs.
    has_tls_of_its_own = max(ranks[each] for each in ("tls", *FILES)) > rank
    if ranks["address"] < rank:
        values["address"] = context.address
    if not has_tls_of_its_own:
        values |= {"tls": context.tls, **{each: _path(getattr(context, each)) for each in FILES}}
    elif values["tls"] is not False:
        values |= {each: _path(getattr(context, each)) for each in FILES if ranks[each] <= rank}
    if ranks["api_key"] <= rank and context.credential != "none":
        values["api_key"] = ContextKey(name, context)
    return {**values, "context_name": name}


def _path(text: str) -> Path | None:
    return Path(text) if text else None
