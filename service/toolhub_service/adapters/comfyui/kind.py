"""ComfyUI as a kind of source: its section of sources.yaml, its rules, its options, and how it is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from toolhub_service.adapters.caller_auth import NO_AUTH, SourceAuth, auth_values, check_auth
from toolhub_service.adapters.source_kind import SourceKind, SourceOption
from toolhub_service.domain.tool import ToolKind
from toolhub_service.sections.source_config import (
    ClientTls,
    Section,
    Source,
    SourceInvalid,
    ToolName,
    Value,
    check_web,
    named_values,
)


class ComfyUiBackend(Section, frozen=True):
    url: Annotated[Value, Meta(description="http:// or https:// base of the ComfyUI server.")]
    headers: Annotated[dict[str, Value], Meta(description="Sent with each request, for a proxy before it.")] = (
        msgspec.field(default_factory=dict)
    )


class ComfyUiSource(Source, frozen=True, tag="comfyui"):
    """ComfyUI servers that run templates: a graph and a sidecar that says what of it is an argument."""

    url: Annotated[Value, Meta(description="Base of the one server; or `backends`.")] = ""
    headers: Annotated[dict[str, Value], Meta(description="Sent with each request, with `url`.")] = msgspec.field(
        default_factory=dict
    )
    backends: Annotated[
        dict[ToolName, ComfyUiBackend],
        Meta(description="Several servers by name; the one with the shortest queue is used."),
    ] = msgspec.field(default_factory=dict)
    templates: Annotated[
        tuple[str, ...],
        Meta(description="Sidecar files (JSON or YAML), or folders of them, from the folder of sources.yaml."),
    ] = ()
    timeout_s: Annotated[
        float,
        Meta(
            description="Time limit in seconds for a job of its tools, from submission to end, including its time "
            "in the queue.",
            gt=0,
        ),
    ] = 3_600.0
    strip_metadata: Annotated[
        bool, Meta(description="Remove the graph that ComfyUI writes into PNG, JPEG, WebP and GIF files.")
    ] = True
    auth: Annotated[SourceAuth, Meta(description="Whose credentials work is sent with, with `url`.")] = NO_AUTH
    tls: Annotated[ClientTls, Meta(description="Certificates.")] = ClientTls()
    connect_timeout_s: Annotated[float, Meta(description="Seconds to connect.", gt=0, le=300)] = 10.0
    read_timeout_s: Annotated[
        float, Meta(description="Seconds to wait for an answer; the server stalls for seconds after each run.", ge=5)
    ] = 30.0
    lost_after_s: Annotated[
        float, Meta(description="Seconds a job must be unknown to its server before it is LOST.", gt=0)
    ] = 15.0


def _check_source(place: str, source: ComfyUiSource) -> None:
    if bool(source.url) == bool(source.backends):
        raise SourceInvalid(f"{place}: needs exactly one of `url` and `backends`")
    if source.headers and source.backends:
        raise SourceInvalid(f"{place}.headers: not allowed with `backends`; each backend has its own")
    if source.auth.per_user is not None and source.backends:
        raise SourceInvalid(
            f"{place}.auth: not allowed with `backends`: a credential is for one server, named by `url`"
        )
    if source.auth.per_user is not None and source.auth.per_user.kind == "exchange":
        raise SourceInvalid(f"{place}.auth.per_user.kind: its tools run as jobs, which keep no token to exchange")
    check_auth(f"{place}.auth", source.auth)
    if not source.templates:
        raise SourceInvalid(f"{place}.templates: list the sidecar files or folders; each file is a tool")
    check_web(f"{place}.url", source.url)
    for name, backend in source.backends.items():
        if not backend.url:
            raise SourceInvalid(f"{place}.backends.{name}.url: must not be empty")
        check_web(f"{place}.backends.{name}.url", backend.url)


def _values(source: ComfyUiSource) -> Iterator[tuple[str, Value]]:
    yield "url", source.url
    yield from named_values("headers", source.headers)
    yield from auth_values(source.auth)
    for name, backend in source.backends.items():
        yield f"backends.{name}.url", backend.url
        yield from named_values(f"backends.{name}.headers", backend.headers)


def _missing(source: ComfyUiSource, _trusted_namespaces: tuple[str, ...]) -> Iterator[str]:
    return (f"templates: there is no {place}" for place in source.templates if not Path(place).exists())


def _entry_of(given: Mapping[str, Any]) -> dict[str, Any]:
    if given["trust"]:
        raise SourceInvalid("--trust does not apply to ComfyUI: templates are your own files.")
    if not given["templates"]:
        raise SourceInvalid("Give a sidecar or a folder of them with --template PATH; each becomes a tool.")
    return {"templates": [str(Path(path).expanduser().absolute()) for path in given["templates"]]}


COMFYUI = SourceKind(
    ToolKind.COMFYUI,
    ComfyUiSource,
    {ComfyUiBackend: "backends: one server of ComfyUI"},
    _check_source,
    "toolhub_service.adapters.comfyui.adapter:ComfyUiOpener",
    values=_values,
    files={ComfyUiSource: ("templates",)},
    missing=_missing,
    preview="toolhub_service.adapters.comfyui.workflow.workflows:preview",
    options=(
        SourceOption(
            "templates", "--template", "ComfyUI sidecar, or a folder of them; repeatable.", is_many=True, is_path=True
        ),
    ),
    entry_of=_entry_of,
    has_trust=False,
    registering="A ComfyUI tool is a template: name its sidecar under `templates` of a source of kind comfyui in "
    "sources.yaml",
)
