"""No tracer listens, whatever the environment says: LangSmith would send every argument away."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fakes.langchain_source import opened

SWITCHES = ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING", "LANGCHAIN_TRACING_V2")


@pytest.mark.promise("langchain.tells-nobody")
async def test_no_tracer_is_attached_though_the_environment_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for switch in SWITCHES:
        monkeypatch.setenv(switch, "true")
    monkeypatch.setenv("LANGSMITH_API_KEY", "key")
    async with opened("Tracers", "LOOP_TOOLS", processes=1) as desk:
        assert await desk("tracers") == {"text": "nobody"}
        assert await desk("loop_tracers") == {"text": "nobody"}
        monkeypatch.setenv("LANGSMITH_TRACING", "true")  # Something in this process turns it on again.
        monkeypatch.setenv("LANGCHAIN_TRACING_V2", "true")
        assert await desk("loop_tracers") == {"text": "nobody"}


def test_the_probe_sees_a_tracer_where_one_is_attached() -> None:
    program = (
        "import os; from tests.fakes.langchain_tools import Tracers;"
        "call = {'type': 'tool_call', 'id': '1', 'name': 'tracers', 'args': {}};"
        "print(Tracers().invoke(call).content, flush=True); os._exit(0)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "LANGSMITH_TRACING": "true", "LANGSMITH_API_KEY": "k"}
    environment["LANGSMITH_ENDPOINT"] = "http://127.0.0.1:9"
    assert printed(program, environment) == "LangChainTracer"


def test_the_source_and_the_adapter_are_imported_without_langchain_or_pydantic() -> None:
    program = (
        "import sys, toolhub_service.adapters.langchain.adapter, toolhub_service.adapters.langchain.source;"
        "print([name for name in ('langchain_core', 'langsmith', 'pydantic', 'mcp') if name in sys.modules])"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert printed(program, environment) == "[]"


def printed(program: str, environment: dict[str, str]) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=50, check=True
    )
    return ran.stdout.strip()
