"""What the protocol's handlers need of the hub: the same parts that serve gRPC, in process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec

from toolhub_service.domain.job_ports import JobService, JobWatching
from toolhub_service.domain.ports import Clock, Invoker, PolicySource
from toolhub_service.domain.source import ResourceNews, SourceStatus
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.mcp_server.login_pages import LoginPages
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.runtime.artifacts.service import Artifacts
from toolhub_service.runtime.call_ids import CallIds
from toolhub_service.runtime.jobs.accept import Submission
from toolhub_service.search.embedding import ToolMeanings
from toolhub_service.search.search import ToolSearch
from toolhub_service.telemetry.mcp import McpTelemetry


def _do_nothing(_: Sequence[str]) -> None: ...


class Engine(msgspec.Struct, frozen=True):
    invoker: Invoker
    catalog: ToolCatalog
    policy: PolicySource
    search: ToolSearch
    meanings: ToolMeanings | None
    sources: Callable[[], Sequence[SourceStatus]]
    relays: Callable[[str], Collection[str]]
    """(source) -> which requests its server may make of the client of a call."""
    stand_ins: Callable[[str], Sequence[ToolSpec]]
    """(tool) -> the tool as policy may see it once its source, which has not been read, offers it."""
    submission: Submission
    jobs: JobService
    watch: JobWatching
    withdraw: Callable[[str, str, str], Awaitable[None]]
    """(approval id, job that waits for it or empty, why): nobody is asked any more."""
    artifacts: Artifacts
    resource_news: ResourceNews
    clock: Clock
    call_ids: CallIds
    telemetry: McpTelemetry
    crashed: Callable[[str, Exception], None]
    """(method, defect), for the log."""
    redact: Callable[[str], str]
    on_policy: Callable[[Callable[[], None]], None]
    """Calls back when another policy is in force."""
    version: str
    state_key: bytes
    """32 bytes or more, the same in all processes of one address: the key that seals state held by clients."""
    mode: str = "auto"
    """`full`, `search`, `program` or `auto`, as settings say."""
    unprefixed_sources: frozenset[str] = frozenset()
    """Whose tools are listed without the source's name before theirs; `*`: all sources'."""
    names_clash: Callable[[Sequence[str]], None] = _do_nothing
    """Tools of those that keep the prefix, for the log: without it another tool, too, would have the name."""
    logins: LoginPages | None = None
    """Pages by which callers log in at sources; None: there are none."""
    approval_url: str = ""
    """URL of the page where an approval is decided, with {approval_id} in it; empty: there is none."""
    job_keep_ms: int = 604_800_000
    """How long a finished job is kept."""
    text_max_bytes: int = 65_536
    """Most text of one result that is not stored and linked instead, unless its tool says another limit."""
    full_max_tokens: int = 20_000
    """In mode `auto`: most tokens (4 bytes each) of the whole list."""

    def approval_page(self, approval_id: str) -> str:
        return self.approval_url.replace("{approval_id}", approval_id)
