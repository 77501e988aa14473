"""Knobs of callers' credentials of sources: the keys that they are sealed under."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from toolhub_service.adapters.source_config import Section


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


class Credentials(Section, frozen=True):
    keys: Annotated[
        tuple[SealingKey, ...],
        Meta(
            description="Keys that callers' credentials are sealed under: the first seals, all open; empty: "
            "<data_dir>/credentials.key, made when it is first needed. Hubs that share a store need the same keys."
        ),
    ] = ()
    command_timeout_s: Annotated[float, Meta(description="Seconds that a `command` may take.", gt=0, le=120)] = 15.0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        # Records name the key they are sealed under: of two with one id the wrong one might be tried.
        if len({key.id for key in self.keys}) < len(self.keys):
            raise ValueError("credentials.keys: two have the same id")
