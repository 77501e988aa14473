"""What the openers of n8n and ComfyUI open is closed with the source: connections, and the threads that ask DNS."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.comfyui import fake_comfyui
from tests.fakes.comfyui_templates import write
from tests.fakes.n8n import fake_n8n
from tests.unit.app.wiring.test_source_runtime import following
from toolhub_service.domain.source import SourceState

N8N: dict[str, Any] = {"kind": "n8n", "workflows": {"echo": {"webhook": "echo", "workflow_id": "1"}}}
COMFYUI: dict[str, Any] = {"kind": "comfyui"}


def resolving() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("resolve")}


@pytest.mark.parametrize("kind", ["n8n", "comfyui"])
async def test_a_source_that_is_taken_away_or_opened_anew_leaves_no_thread_behind(tmp_path: Path, kind: str) -> None:
    templates = write(tmp_path / "templates")
    async with fake_n8n() as n8n, fake_comfyui() as comfy:
        entries = {
            "n8n": {**N8N, "url": named(n8n.url), "api_key": n8n.api_key},
            "comfyui": {**COMFYUI, "url": named(comfy.url), "templates": [str(templates)]},
        }
        before = resolving()
        async with following(tmp_path, flows=entries[kind]) as hub:
            await hub.read()
            assert hub.status("flows").state in (SourceState.READY, SourceState.PARTIAL)
            first = resolving() - before
            assert first
            await hub.write(flows={**entries[kind], "timeout_s": 5})
            await hub.read()
            await hub.write()
            for thread in first | (resolving() - before):
                thread.join(60)
            assert resolving() <= before


def named(url: str) -> str:
    """By a name, which must be asked for."""
    return url.replace("127.0.0.1", "localhost")
