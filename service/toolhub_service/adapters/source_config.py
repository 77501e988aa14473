"""What entries of sources.yaml have in common, whatever their kind: each kind declares its own in its `kind.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

_WEB: Final = ("http://", "https://")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A group of configuration keys; unknown names are refused."""


class SourceInvalid(ValueError):
    """A source, or the document of all, cannot be used as written; the message says where and why."""


class SecretRef(Section, frozen=True):
    """A value that does not stand in the file. Files that are not absolute count from the folder of sources.yaml."""

    env: Annotated[str, Meta(description="Environment variable of the hub that holds it.")] = ""
    file: Annotated[str, Meta(description="File that holds it; white space at its end is cut off.")] = ""
    prefix: Annotated[str, Meta(description='What is put before it, such as "Bearer ".')] = ""


Value = str | SecretRef


class ToolTerms(Section, frozen=True):
    """What the operator says of tools whose own names match; what is left out stays as the source says, or safer."""

    offered: Annotated[bool, Meta(description="false: not offered at all.")] = True
    read_only: Annotated[
        bool | None, Meta(description="true: calls change nothing. A source is not believed when it says so.")
    ] = None
    idempotent: Annotated[bool | None, Meta(description="true: calling twice does what calling once does.")] = None
    destructive: Annotated[bool | None, Meta(description="false: not destructive, whatever the source says.")] = None
    capabilities: Annotated[
        tuple[str, ...] | None, Meta(description="What a principal must hold, instead of the source's.")
    ] = None
    timeout_s: Annotated[float, Meta(description="Seconds a call gets.", gt=0)] | None = None
    error_pattern: Annotated[
        str, Meta(description="Linear-time regular expression: a text result that it finds is an error.")
    ] = ""


class Source(Section, frozen=True, tag_field="kind"):
    enabled: Annotated[bool, Meta(description="false: known and not read.")] = True
    capabilities: Annotated[
        tuple[str, ...], Meta(description="What a principal must hold to call its tools; empty: `<kind>:<name>`.")
    ] = ()
    tags: Annotated[tuple[str, ...], Meta(description="Tags of all its tools.")] = ()
    timeout_s: Annotated[float, Meta(description="Seconds a call of its tools gets.", gt=0)] = 60.0
    max_concurrency: Annotated[
        int,
        Meta(
            description="Calls and jobs in flight at once; 0: the hub's default, and no bound for jobs run elsewhere.",
            ge=0,
        ),
    ] = 0
    refresh_s: Annotated[
        float, Meta(description="Seconds between readings when the source names no time (30 to 300).", ge=1)
    ] = 60.0
    tools: Annotated[
        dict[str, ToolTerms], Meta(description="Terms by glob over the tools' own names; later ones win.")
    ] = msgspec.field(default_factory=dict)


class ClientTls(Section, frozen=True):
    ca_file: Annotated[str, Meta(description="PEM CAs to trust; empty: the system's.")] = ""
    certificate_file: Annotated[str, Meta(description="PEM certificate that the hub shows (mTLS).")] = ""
    key_file: Annotated[str, Meta(description="PEM private key of the certificate.")] = ""


ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]


def check_web(place: str, url: Value) -> None:
    """Raises SourceInvalid when a URL that stands in the file is not one of the web."""
    if isinstance(url, str) and url and not url.startswith(_WEB):
        raise SourceInvalid(f"{place}: must begin with http:// or https://")


def named_values(place: str, values: Mapping[str, Value]) -> Iterator[tuple[str, Value]]:
    """Each value with its place, such as `headers.Authorization`."""
    return ((f"{place}.{name}", value) for name, value in values.items())
