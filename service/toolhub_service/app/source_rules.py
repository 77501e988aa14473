"""What a schema cannot say of an entry of sources.yaml, and which of its values may stand elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from toolhub_service.settings.source_terms import SecretRef, Value
from toolhub_service.settings.sources import AnySource, ClientCredentials, LangChainSource, McpSource
from toolhub_service.settings.workflow_sources import ComfyUiSource, N8nSource, N8nWorkflow

_WEB: Final = ("http://", "https://")
_BODILESS: Final = frozenset({"GET", "DELETE"})


class SourceInvalid(ValueError):
    """A source, or the document of all, cannot be meant as it stands; the message says where and why."""


def check_whole(place: str, source: AnySource) -> None:
    """`place` begins each message, such as `sources.crm`. Raises SourceInvalid."""
    if isinstance(source, LangChainSource):
        _check_langchain(place, source)
    elif isinstance(source, N8nSource):
        _check_n8n(place, source)
    elif isinstance(source, ComfyUiSource):
        _check_comfyui(place, source)
    else:
        _check_mcp(place, source)
    for at, value in values_of(source).items():
        if isinstance(value, SecretRef) and bool(value.env) == bool(value.file):
            raise SourceInvalid(f"{place}.{at}: needs exactly one of `env` and `file`")


def values_of(source: AnySource) -> dict[str, Value]:
    """What may stand elsewhere, by its place."""
    return {at: value for at, value in _values(source) if value}


def _values(source: AnySource) -> Iterator[tuple[str, Value]]:
    if isinstance(source, LangChainSource):
        return
    yield "url", source.url
    yield from _named("headers", source.headers)
    if isinstance(source, McpSource):
        yield from _named("env", source.env)
        yield from ((f"args.{at}", value) for at, value in enumerate(source.args))
        if source.oauth is not None:
            yield "oauth.client_secret", source.oauth.client_secret
            yield "oauth.private_key", source.oauth.private_key
    elif isinstance(source, N8nSource):
        yield "api_key", source.api_key
        for name, workflow in source.workflows.items():
            yield from _named(f"workflows.{name}.headers", workflow.headers)
    else:
        for name, backend in source.backends.items():
            yield f"backends.{name}.url", backend.url
            yield from _named(f"backends.{name}.headers", backend.headers)


def _named(place: str, values: dict[str, Value]) -> Iterator[tuple[str, Value]]:
    return ((f"{place}.{name}", value) for name, value in values.items())


def _check_langchain(place: str, source: LangChainSource) -> None:
    if not source.load and not source.entry_points:
        raise SourceInvalid(f"{place}: needs `load` or `entry_points`")


def _check_mcp(place: str, source: McpSource) -> None:
    if bool(source.command) == bool(source.url):
        raise SourceInvalid(f"{place}: needs exactly one of `command` and `url`")
    _check_web(f"{place}.url", source.url)
    misplaced = ("headers", "oauth", "origins") if source.command else ("args", "env", "cwd")
    for key in misplaced:
        if getattr(source, key):
            raise SourceInvalid(f"{place}.{key}: means nothing with `{'command' if source.command else 'url'}`")
    if source.oauth is not None:
        _check_client(f"{place}.oauth", source.oauth)


def _check_client(place: str, client: ClientCredentials) -> None:
    if bool(client.client_secret) == bool(client.private_key):
        raise SourceInvalid(f"{place}: needs exactly one of `client_secret` and `private_key`")
    if client.client_secret and client.signing_algorithm != "auto":
        raise SourceInvalid(f"{place}.signing_algorithm: means nothing with `client_secret`")
    if client.audience and not (client.private_key and client.token_url):
        raise SourceInvalid(f"{place}.audience: means nothing without `private_key` and `token_url`")


def _check_n8n(place: str, source: N8nSource) -> None:
    if not source.url:
        raise SourceInvalid(f"{place}.url: must not be empty")
    _check_web(f"{place}.url", source.url)
    if not source.workflows and source.discover is None:
        raise SourceInvalid(f"{place}: needs `workflows`, or `discover: {{}}` to offer every active webhook workflow")
    if source.discover is not None and not source.api_key:
        raise SourceInvalid(f"{place}.discover: needs `api_key`, for workflows are found through the public API")
    for name, workflow in source.workflows.items():
        _check_workflow(f"{place}.workflows.{name}", workflow, has_key=bool(source.api_key))


def _check_workflow(place: str, workflow: N8nWorkflow, *, has_key: bool) -> None:
    if not workflow.webhook and not workflow.workflow_id:
        raise SourceInvalid(f"{place}: needs `webhook`, or `workflow_id` to have its webhook looked up")
    if not has_key and not workflow.webhook:
        raise SourceInvalid(f"{place}.workflow_id: without `webhook` it needs the source's `api_key`")
    if not has_key and workflow.mode == "async":
        raise SourceInvalid(f"{place}.mode: async needs the source's `api_key`, by which executions are followed")
    if "://" in workflow.webhook or ".." in workflow.webhook.split("/"):
        raise SourceInvalid(f"{place}.webhook: must be a path below `/webhook/`, such as `send-message`")
    if workflow.idempotency_field and workflow.method in _BODILESS:
        raise SourceInvalid(f"{place}.idempotency_field: a {workflow.method} has no body")


def _check_comfyui(place: str, source: ComfyUiSource) -> None:
    if bool(source.url) == bool(source.backends):
        raise SourceInvalid(f"{place}: needs exactly one of `url` and `backends`")
    if source.headers and source.backends:
        raise SourceInvalid(f"{place}.headers: means nothing with `backends`, which have their own")
    if not source.templates:
        raise SourceInvalid(f"{place}.templates: needs the files or folders of the sidecars; each is a tool")
    _check_web(f"{place}.url", source.url)
    for name, backend in source.backends.items():
        if not backend.url:
            raise SourceInvalid(f"{place}.backends.{name}.url: must not be empty")
        _check_web(f"{place}.backends.{name}.url", backend.url)


def _check_web(place: str, url: Value) -> None:
    if isinstance(url, str) and url and not url.startswith(_WEB):
        raise SourceInvalid(f"{place}: must begin with http:// or https://")
