"""An opened LangChain source and its adapter, in one line."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from opentelemetry.trace import Tracer

from tests.ports.adapter_suite import SILENT, granted
from toolhub_service.adapters.langchain.adapter import LangChainAdapter
from toolhub_service.adapters.langchain.kind import LangChainSource
from toolhub_service.adapters.langchain.source import LangChainToolSource
from toolhub_service.domain.errors.failure import ToolError, ToolFailure
from toolhub_service.domain.source import Discovery
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.secrets import Redactor
from toolhub_service.sandbox.hidden import HiddenPaths
from toolhub_service.sections.source_config import ToolTerms

FAKES = "tests.fakes.langchain_tools"
REDACTOR = Redactor(["hunter2-known"])


@dataclass(slots=True)
class OpenedSource:
    """`await opened("read_file", file_path="a")`: the value of a call."""

    source: LangChainToolSource
    adapter: LangChainAdapter
    discovery: Discovery

    def spec(self, own_name: str) -> ToolSpec:
        (spec,) = (one.spec for one in self.discovery.definitions if one.spec.resource_id == own_name)
        return spec

    async def __call__(self, own_name: str, /, **args: Any) -> Any:
        return (await self.adapter.execute(granted(self.spec(own_name), args), SILENT)).value

    async def refused(self, own_name: str, /, **args: Any) -> ToolError:
        """Why a call that must not succeed did not."""
        try:
            value = await self(own_name, **args)
        except ToolFailure as failure:
            return failure.error
        raise AssertionError(f"it gave {value}")


def a_source(
    *load: str,
    tools: Mapping[str, ToolTerms] | None = None,
    args: Mapping[str, Any] | None = None,
    trusted: Sequence[str] = ("tests.fakes",),
    entry_points: Sequence[str] = (),
    max_result_bytes: int = 100_000,
    keep_warm: bool = False,
    hides: HiddenPaths | None = None,
    secrets: frozenset[str] = frozenset(),
    **terms: Any,
) -> LangChainToolSource:
    terms = {"in_hub": True, **terms}
    entry = LangChainSource(
        load=load, args=dict(args or {}), entry_points=tuple(entry_points), tools=dict(tools or {}), **terms
    )
    return LangChainToolSource(
        "desk",
        entry,
        tuple(trusted),
        redact=REDACTOR.text,
        secrets=secrets,
        max_result_bytes=max_result_bytes,
        keep_warm=keep_warm,
        hides=hides,
    )


@asynccontextmanager
async def opened(*names: str, tracer: Tracer | None = None, **terms: Any) -> AsyncIterator[OpenedSource]:
    """`names`: attributes of the fake tools, or whole references."""
    source = a_source(*(name if ":" in name else f"{FAKES}:{name}" for name in names), **terms)
    adapter = LangChainAdapter(redact=REDACTOR.text, tracer=tracer)
    adapter.put(source)
    try:
        yield OpenedSource(source, adapter, await source.discover())
    finally:
        await source.close()


async def gone(pid: int, within_s: float = 60.0) -> bool:
    """Whether the process, of whatever parent, ends in time; a zombie has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(await asyncio.to_thread(poll.poll, within_s * 1000))
    finally:
        os.close(descriptor)


class ToolSocket:
    """A Unix socket at which tools in other processes say a word and wait."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.words: asyncio.Queue[str] = asyncio.Queue()
        self.left: asyncio.Queue[str] = asyncio.Queue()
        """The words of those whose connection has ended."""
        self.let_go = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._met, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = (await reader.readline()).decode().strip()
        self.words.put_nowait(word)
        ended = asyncio.ensure_future(reader.read())
        go = asyncio.ensure_future(self.let_go.wait())
        await asyncio.wait({ended, go}, return_when=asyncio.FIRST_COMPLETED)
        if go.done():
            writer.write(f"go {word}".encode())
        go.cancel()
        writer.close()
        if not ended.done():
            await ended
        self.left.put_nowait(word)
