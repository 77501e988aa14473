"""The core/http.* tools, over one client."""

from __future__ import annotations

from typing import Any

from toolhub_service.guards.secrets import Redactor
from toolhub_service.tools.egress.client import EgressClient
from toolhub_service.tools.http_download_file import HttpDownloadFile
from toolhub_service.tools.http_exchange import HttpServices
from toolhub_service.tools.http_fetch_json import HttpFetchJson
from toolhub_service.tools.http_fetch_text import HttpFetchText
from toolhub_service.tools.http_head import HttpHead
from toolhub_service.tools.http_request import HttpRequestTool
from toolhub_service.tools.tool import Tool


def http_tools(client: EgressClient, redactor: Redactor | None = None) -> list[Tool[Any, Any]]:
    """Every HTTP tool. The owner of `client` closes it (`await client.aclose()`) when no call is left.

    `redactor` cleans excerpts of answers; None: one that knows no secret values of its own.
    """
    services = HttpServices(client, redactor or Redactor())
    return [
        HttpFetchText(services),
        HttpFetchJson(services),
        HttpHead(services),
        HttpRequestTool(services),
        HttpDownloadFile(services),
    ]
