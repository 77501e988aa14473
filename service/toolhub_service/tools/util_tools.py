"""The core/util.* tools, ready to be registered."""

from __future__ import annotations

from typing import Any

from toolhub_service.domain.ports import Clock
from toolhub_service.tools.tool import Tool
from toolhub_service.tools.util_hash_sha256_text import HashSha256Text
from toolhub_service.tools.util_json_select import JsonSelect
from toolhub_service.tools.util_template_render import TemplateRender
from toolhub_service.tools.util_text_truncate import TextTruncate
from toolhub_service.tools.util_time_now import TimeNow


def util_tools(clock: Clock) -> list[Tool[Any, Any]]:
    """One of each."""
    return [HashSha256Text(), JsonSelect(), TemplateRender(), TextTruncate(), TimeNow(clock)]
