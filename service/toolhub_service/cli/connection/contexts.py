"""Contexts: a user's hubs, each with its address, TLS files and credential, in one file."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from toolhub_service.cli.connection.hub_options import contexts_file

_VERSION: Final = 1
_SIZE_MAX_BYTES: Final = 1024 * 1024
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_AT_ALL: Final = 0o077
# Names are also file names, and some file systems are not case-sensitive.
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Login:
    """The parameters of `toolhub login`; empty: taken from the hub's metadata, or none if that has none."""

    issuer: str = ""
    client_id: str = ""
    scopes: tuple[str, ...] = ()
    resource: str = ""
    """The resource of tokens (RFC 8707) for the hub's gRPC address."""
    mcp_resource: str = ""
    """The resource of tokens for its MCP endpoint."""
    audience: str = ""
    """For issuers that use `audience` instead of `resource`, such as Auth0."""


@dataclass(frozen=True, slots=True)
class Context:
    """One hub, and the user's credential for it."""

    address: str
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    api_key_file: str = ""
    api_key_env: str = ""
    """Name of the environment variable that holds the key."""
    mcp_url: str = ""
    login: Login | None = None

    @property
    def credential(self) -> str:
        """Return the kind of its credential, for people."""
        if self.login is not None:
            return f"login at {self.login.issuer}" if self.login.issuer else "login"
        if self.api_key_file:
            return f"key in {self.api_key_file}"
        if self.api_key_env:
            return f"key in ${self.api_key_env}"
        return "client certificate" if self.cert_file else "none"


@dataclass(frozen=True, slots=True)
class Contexts:
    """The file."""

    current: str = ""
    by_name: Mapping[str, Context] = field(default_factory=dict)

    def find(self, name: str) -> Context:
        """Return the context. Raises click.UsageError."""
        if name in self.by_name:
            return self.by_name[name]
        known = f"There are: {', '.join(sorted(self.by_name))}." if self.by_name else "There is none yet."
        raise click.UsageError(f"There is no context `{name}`. {known} `toolhub context add` adds one.")


def check_name(name: str) -> str:
    """Return the name. Raises click.UsageError."""
    if not _NAME.fullmatch(name):
        raise click.UsageError(
            f"{name!r} cannot be the name of a context: use small letters, digits and . _ -, at most 63, as in prod."
        )
    return name


def read_contexts() -> Contexts:
    """Return the contexts of the file; none when there is no file. Raises click.ClickException."""
    path = contexts_file()
    try:
        with path.open("rb") as file:
            # The file decides where credentials are sent.
            if os.fstat(file.fileno()).st_mode & _OTHERS_WRITE:
                raise click.ClickException(f"Others may write {path}: chmod 600 {path}")
            # Bounded: a longer file is cut, and so fails as JSON.
            text = file.read(_SIZE_MAX_BYTES + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as unreadable:
        raise click.ClickException(f"{path}: {unreadable.strerror}") from unreadable
    try:
        return _contexts_of(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, click.UsageError) as broken:
        raise click.ClickException(f"{path} is no file of contexts: {broken}. Repair or remove it.") from broken


def _contexts_of(document: Any) -> Contexts:
    if document["version"] != _VERSION:
        raise ValueError(f"a newer toolhub has written it (version {document['version']})")
    by_name = {check_name(name): _record(Context, each) for name, each in document["contexts"].items()}
    return Contexts(str(document.get("current", "")), by_name)


def _record(kind: type[Record], value: Any) -> Record:
    """Return the record. Raises ValueError for unknown fields, TypeError for a wrong type or a missing field."""
    known: dict[str, Any] = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]  # a dataclass, always
    given = dict(value)
    for name, content in given.items():
        if name not in known:
            raise ValueError(f"unknown member {name!r}")
        wanted = known[name].type
        if name == "login" and content is not None:
            given[name] = _record(Login, content)
        elif wanted.startswith("tuple"):
            given[name] = tuple(map(str, content))
        elif wanted in ("str", "bool") and type(content).__name__ != wanted:
            raise TypeError(f"{name} must be a {wanted}")
    return kind(**given)


@contextmanager
def changing_contexts() -> Iterator[Callable[[Contexts], None]]:
    """Yield the file's contexts to be changed; no other command changes the file meanwhile."""
    from toolhub_service.app.config_files.editing import lock_for_edit, replace_text

    def keep(contexts: Contexts) -> None:
        by_name = {name: _plain(asdict(each)) for name, each in sorted(contexts.by_name.items())}
        document = {"version": _VERSION, "current": contexts.current, "contexts": by_name}
        replace_text(contexts_file(), json.dumps(document, indent=2, ensure_ascii=False) + "\n", mode=0o600)

    try:
        with lock_for_edit(contexts_file()):
            yield keep
    except OSError as failed:
        raise click.ClickException(f"{failed.filename or contexts_file()}: {failed.strerror}") from failed


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Return the members that are not empty."""
    full = {name: _plain(value) if isinstance(value, dict) else value for name, value in record.items()}
    return {name: value for name, value in full.items() if value not in ("", (), None) or name == "address"}


def keep_login(name: str, login: Login) -> None:
    """Store what was found about a context's issuer in it."""
    with changing_contexts() as keep:
        contexts = read_contexts()
        changed = replace(contexts.find(name), login=login)
        keep(replace(contexts, by_name={**contexts.by_name, name: changed}))


def read_private(path: Path, size_max_bytes: int, why: str) -> str:
    """Return the text of a file that only its owner may read. Raises click.ClickException."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS_AT_ALL:
                raise click.ClickException(f"{why}, which others may read: chmod 600 {path}")
            return file.read(size_max_bytes).decode()
    except OSError as unreadable:
        raise click.ClickException(f"{why}: {unreadable.strerror}.") from unreadable
    except UnicodeDecodeError as binary:
        raise click.ClickException(f"{why}, which is no text.") from binary


def complete_context(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return names for the shell, each with its address; no hub is asked."""
    try:
        found = read_contexts().by_name.items()
    except click.ClickException:
        return []
    return [CompletionItem(name, help=each.address) for name, each in found if name.startswith(incomplete)]
