"""Settings of tools that work only where an operator has configured something: channels, endpoints, connections."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from toolhub_service.adapters.source_config import SecretRef, Section

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]


class Channel(Section, frozen=True):
    """Where core/media.send may send to."""

    name: Annotated[Name, Meta(description="How models name it.")]
    url: Annotated[
        SecretRef,
        Meta(description="Apprise URL, a secret: `{env: VARIABLE}` or `{file: PATH}`, such as `mailtos://…`."),
    ]
    attachments: Annotated[bool, Meta(description="Whether files may be sent.")] = True
    extensions: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[a-z0-9]{1,10}$")], ...],
        Meta(description="Types of files that may be sent, such as `pdf`; empty: the built-in list of 27."),
    ] = ()


# core/web.search


class WebSearch(Section, frozen=True):
    provider: Annotated[
        Literal["", "brave", "searxng"], Meta(description="What core/web.search asks; empty: it is UNAVAILABLE.")
    ] = ""
    base_url: Annotated[
        str,
        Meta(
            description="http:// or https:// base of the SearXNG server, which may be private; for brave an address "
            "that speaks its API, empty: Brave's own."
        ),
    ] = ""
    api_key_env: Annotated[
        str, Meta(description="Environment variable with the API key of brave; the key itself is no setting.")
    ] = "BRAVE_API_KEY"
    api_key_file: Annotated[str, Meta(description="File with the API key of brave, instead of the variable.")] = ""


class Web(Section, frozen=True):
    search: WebSearch = WebSearch()


class Faces(Section, frozen=True):
    enabled: Annotated[
        tuple[Literal["countbot", "local-tools"], ...],
        Meta(description="Older sets of tools under whose names calls may be made (docs/faces.md)."),
    ] = ("countbot", "local-tools")
    countbot_tools: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}=[^=/]+/[^=]+$")], ...],
        Meta(description="Further tools of the face countbot, `my_tool=acme/my_tool` each; arguments as they are."),
    ] = ()


# core/memory.*


class Memory(Section, frozen=True):
    file: Annotated[
        str,
        Meta(description="SQLite file of what agents remember, with stores.kind sqlite; empty: <data_dir>/memory.db."),
    ] = ""
    max_items: Annotated[int, Meta(description="Items that one principal may keep.", ge=1, le=10_000_000)] = 100_000
    max_bytes: Annotated[int, Meta(description="Total bytes of the items of one principal.", ge=1)] = 64 * 1024 * 1024
    max_item_chars: Annotated[int, Meta(description="Longest text of one item, characters.", ge=1, le=50_000)] = 8_000
    ttl_s: Annotated[
        float,
        Meta(
            description="Seconds for which an item is kept at most, and where it asks for no time; 0: for ever.", ge=0
        ),
    ] = 31_536_000.0
