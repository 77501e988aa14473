"""Knobs of callers' credentials: the keys that they are sealed under, and hosts that are asked with them."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated

from msgspec import Meta

from toolhub_service.adapters.caller_auth import SourceAuth, check_auth
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.guards.headers import SURVIVES_REDIRECT
from toolhub_service.guards.urls import ParsedUrl, parse_url
from toolhub_service.sections.source_config import Section


class SealingKey(Section, frozen=True):
    """One key: 32 bytes, in base64 or as 64 hex digits, from exactly one place."""

    id: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="What records name it by; never given to another key.")
    ]
    file: Annotated[str, Meta(description="File with the key.")] = ""
    env: Annotated[str, Meta(description="Environment variable with the key.")] = ""
    command: Annotated[
        tuple[str, ...],
        Meta(description="Program and arguments that print the key, such as a KMS's decrypt; no shell. Run at start."),
    ] = ()

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if sum(map(bool, (self.file, self.env, self.command))) != 1:
            raise ValueError(f"credentials.keys: {self.id}: give exactly one of file, env and command")


def _is_of_this_machine(url: ParsedUrl) -> bool:
    return ip_address(url.host).is_loopback if url.is_address else url.host == "localhost"


class CredentialHost(Section, frozen=True):
    """A host that core/http.* and core/web.fetch ask with their caller's own credential."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$",
            description="What users give a credential for (`toolhub credentials set NAME`); no source has this name.",
        ),
    ]
    url: Annotated[
        str,
        Meta(
            description="`https://HOST` or `https://HOST:PORT`, or `http://` on this machine; the credential goes "
            "nowhere else."
        ),
    ]
    auth: Annotated[SourceAuth, Meta(description="As of sources; `per_user` must be given.")]

    def __post_init__(self) -> None:
        """Raises ValueError."""
        place = f"credentials.hosts: {self.name}"
        try:
            url = parse_url(self.url)
        except ToolFailure as wrong:
            raise ValueError(f"{place}.url: {wrong.error.message}") from wrong
        if url.target != "/" or "?" in self.url:
            raise ValueError(f"{place}.url: give scheme, host and port alone: a credential is for all of a host")
        if url.scheme == "http" and not _is_of_this_machine(url):
            raise ValueError(
                f"{place}.url: the credential would cross the network in the clear: give https://{url.host}"
            )
        if self.auth.per_user is None:
            raise ValueError(f"{place}.auth.per_user: say what credential callers have there")
        if self.auth.per_user.header.lower() in SURVIVES_REDIRECT:
            raise ValueError(f"{place}.auth.per_user.header: a header that redirects take along carries no credential")
        check_auth(f"{place}.auth", self.auth)


class Credentials(Section, frozen=True):
    keys: Annotated[
        tuple[SealingKey, ...],
        Meta(
            description="Keys that callers' credentials are sealed under: the first seals, all open; empty: "
            "<data_dir>/credentials.key, made when it is first needed. Hubs that share a store need the same keys."
        ),
    ] = ()
    command_timeout_s: Annotated[float, Meta(description="Seconds that a `command` may take.", gt=0, le=120)] = 15.0

    hosts: Annotated[
        tuple[CredentialHost, ...],
        Meta(description="Hosts that the built-in HTTP tools ask with their caller's own credential."),
    ] = ()

    def __post_init__(self) -> None:
        """Raises ValueError."""
        for named in ([host.name for host in self.hosts], [parse_url(host.url).origin for host in self.hosts]):
            if len(set(named)) < len(named):
                raise ValueError("credentials.hosts: two have the same name, or the same host")
        # Records name the key that seals them: with two keys of one id the wrong one might be tried.
        if len({key.id for key in self.keys}) < len(self.keys):
            raise ValueError("credentials.keys: two have the same id")
