"""Wires what reads and shows the web and the desktop: pages, the configured search engine, browser and display."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from toolhub_service.adapters.source_config import SecretRef, SourceValues
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.ports import Resolver
from toolhub_service.guards.secrets import Redactor
from toolhub_service.guards.urls import parse_url
from toolhub_service.settings.document import Settings
from toolhub_service.tools.desktop import DesktopScreenshot
from toolhub_service.tools.egress.client import EgressClient
from toolhub_service.tools.host_credentials import HostCredentials
from toolhub_service.tools.http_exchange import HttpServices
from toolhub_service.tools.tool import Tool
from toolhub_service.tools.web.fetch import WebFetch
from toolhub_service.tools.web.page_reader import PageReader
from toolhub_service.tools.web.screenshot import WebScreenshot, find_browser
from toolhub_service.tools.web.search import SearchEngine, WebSearch, brave, searxng


@dataclass(frozen=True, slots=True)
class Web:
    """Made by `open_web`; nothing runs until a tool is called."""

    tools: Sequence[Tool[Any, Any]]
    reader: PageReader

    async def close(self) -> None:
        """End the processes that read pages."""
        await self.reader.close()


def open_web(
    settings: Settings, http: EgressClient, resolver: Resolver, redactor: Redactor, hosts: HostCredentials | None = None
) -> Web:
    """The tools, those among them that lack something with the reason."""
    services = HttpServices(http, redactor, hosts=hosts)
    reader = PageReader()
    engine, lacking = _search_engine(settings, redactor)
    tools = (
        WebFetch(services, reader),
        WebSearch(services, engine, lacking),
        WebScreenshot(find_browser(settings.browser.executable, settings.browser.sandbox), resolver),
        DesktopScreenshot(settings.desktop.display or os.environ.get("DISPLAY", "")),
    )
    return Web(tools, reader)


def _search_engine(settings: Settings, redactor: Redactor) -> tuple[SearchEngine | None, str]:
    """The engine that is configured, or what is to be configured."""
    of = settings.web.search
    if not of.provider:
        return None, (
            "set web.search.provider: `brave` with an API key in the variable BRAVE_API_KEY, or `searxng` with "
            "web.search.base_url"
        )
    if of.base_url and not _is_web(of.base_url):
        return None, "web.search.base_url must be an http:// or https:// URL without user name and query"
    if of.provider == "searxng":
        return (searxng(of.base_url), "") if of.base_url else (None, "set web.search.base_url to the SearXNG server")
    where = SecretRef(file=of.api_key_file) if of.api_key_file else SecretRef(env=of.api_key_env)
    read_key = partial(SourceValues(redactor).one, where)
    try:
        read_key()
    except (ValueError, OSError):
        named = f"a readable file {of.api_key_file}" if of.api_key_file else f"the variable {of.api_key_env}"
        return None, f"set {named} for the hub: the API key of Brave Search (web.search.api_key_env or api_key_file)"
    return brave(read_key, of.base_url), ""


def _is_web(url: str) -> bool:
    try:
        parse_url(url)
    except ToolFailure:
        return False
    return "?" not in url and "#" not in url
