from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from tests.fakes.clock import ManualClock
from tests.ports.catalog_suite import tool
from toolhub_service.domain.call import Call, ExecContext, Mode, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.result import SettledCall, ToolResult
from toolhub_service.domain.tool import ToolUse
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.search.search import ToolSearch
from toolhub_service.search.usage import PURPOSE_MAX_CHARS, UsageLearning

DAY_S = 24 * 3600


class ListedUses:
    """A `UsageStore` that several learners share, and that can be away."""

    def __init__(self) -> None:
        self.uses: list[ToolUse] = []
        self.is_away = False
        self.was_read = asyncio.Event()

    async def add(self, uses: Sequence[ToolUse]) -> None:
        self._check()
        self.uses += uses

    async def after(self, cursor: int, limit: int) -> tuple[Sequence[ToolUse], int]:
        self.was_read.set()
        self._check()
        page = self.uses[cursor : cursor + limit]
        return page, cursor + len(page)

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        self._check()
        return 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def _check(self) -> None:
        if self.is_away:
            raise ToolFailure(ToolError(ErrorKind.TOOL_UNAVAILABLE, "the store is away"))


class UsageHarness:
    """Learners on one store, and a search."""

    def __init__(self) -> None:
        self.store = ListedUses()
        self.clock = ManualClock()
        self.notified: list[str] = []
        self.learning = self.learner()
        self.catalog = ToolCatalog(check_schema=lambda schema: None)
        self.catalog.register_all([tool("a/ledger", "Keeps books."), tool("b/mail", "Sends mail.")])
        self.search = ToolSearch(self.catalog, learnt=self.learning.of, unix_ms=self.clock.unix_ms)

    def learner(self, max_uses: int = 1_000) -> UsageLearning:
        return UsageLearning(
            self.store,
            clock=self.clock,
            redact=lambda text: text.replace("hunter2", "***"),
            notify=self.notified.append,
            max_uses=max_uses,
        )

    def use(self, purpose: str = "quarterly revenue", tenant: str = "ann", tool: str = "a/ledger") -> ToolUse:
        return ToolUse(tenant, tool, "sub", purpose, self.clock.unix_ms())

    def found(self, query: str, tenant: str = "ann") -> list[str]:
        return [hit.tool.name for hit in self.search.search(query, tenant=tenant).hits]


@pytest.fixture
async def harness() -> AsyncIterator[UsageHarness]:
    harness = UsageHarness()
    yield harness
    await harness.learning.close()


@pytest.mark.promise("search.learns")
async def test_a_tool_is_found_by_what_it_was_used_for(harness: UsageHarness) -> None:
    assert harness.found("revenue") == []
    harness.learning.learn_use(harness.use())
    await harness.learning.flush()
    (hit,) = harness.search.search("revenue", tenant="ann").hits
    assert (hit.tool.name, hit.fields) == ("a/ledger", ("usage",))
    assert [(reason.part, reason.word) for reason in hit.reasons] == [("usage", "revenue")]
    assert hit.reasons[0].score == pytest.approx(hit.score, rel=1e-5)
    assert harness.search.search("revenue", tenant="ann").ranked_by == ("words", "usage")


@pytest.mark.promise("search.use-stays-with-its-tenant")
@pytest.mark.promise("search.learns")
async def test_use_by_one_tenant_neither_shows_nor_ranks_in_searches_of_another(harness: UsageHarness) -> None:
    before = harness.search.search("mail revenue", tenant="bob")
    for purpose in ("revenue", "revenue by mail", "mail of the bureau"):
        harness.learning.learn_use(harness.use(purpose))
    await harness.learning.flush()
    assert harness.search.search("mail revenue", tenant="bob") == before
    assert harness.search.search("mail revenue") == before
    assert harness.found("mail revenue") != [hit.tool.name for hit in before.hits]


async def test_uses_do_not_show_what_the_viewer_may_not_see(harness: UsageHarness) -> None:
    harness.learning.learn_use(harness.use())
    await harness.learning.flush()
    for viewer in (None, "ann"):
        result = harness.search.search("revenue", tenant="ann", allowed=lambda spec: False, viewer=viewer)
        assert (result.hits, result.total_size) == ((), 0)


async def test_secrets_in_a_purpose_are_neither_stored_nor_learnt(harness: UsageHarness) -> None:
    harness.learning.learn_use(harness.use("open the vault with hunter2"))
    await harness.learning.flush()
    assert [use.purpose for use in harness.store.uses] == ["open the vault with ***"]
    assert harness.found("hunter2") == []
    assert harness.found("vault") == ["a/ledger"]


async def test_a_long_purpose_is_learnt_to_a_bound(harness: UsageHarness) -> None:
    harness.learning.learn_use(harness.use("revenue " + "x" * 5_000))
    await harness.learning.flush()
    assert len(harness.store.uses[0].purpose) == PURPOSE_MAX_CHARS


async def test_a_loop_of_equal_calls_is_stored_once(harness: UsageHarness) -> None:
    for _ in range(100):
        harness.learning.learn_use(harness.use())
    await harness.learning.flush()
    harness.learning.learn_use(harness.use())
    await harness.learning.flush()
    assert len(harness.store.uses) == 1


async def test_a_flood_of_different_purposes_is_not_stored(harness: UsageHarness) -> None:
    for number in range(500):
        harness.learning.learn_use(harness.use(f"revenue x{number}y"))
    await harness.learning.flush()
    assert len(harness.store.uses) == 10


@pytest.mark.promise("search.learns")
async def test_another_process_learns_what_this_one_saw_and_so_does_the_next_start(harness: UsageHarness) -> None:
    other = harness.learner()
    await other.flush()
    harness.learning.learn_use(harness.use())
    await harness.learning.flush()
    await other.flush()
    later = harness.learner()
    await later.flush()
    for learner in (other, later):
        usage = learner.of("ann")
        assert usage is not None
        assert usage.size == 1


async def test_one_of_its_own_uses_read_back_counts_once(harness: UsageHarness) -> None:
    harness.learning.learn_use(harness.use())
    for _ in range(3):
        await harness.learning.flush()
    usage = harness.learning.of("ann")
    assert usage is not None
    assert usage.size == 1


async def test_a_store_that_is_away_is_reported_once_and_loses_nothing(harness: UsageHarness) -> None:
    harness.store.is_away = True
    harness.learning.learn_use(harness.use())
    await harness.learning.flush()
    await harness.learning.flush()
    assert len(harness.notified) == 1
    assert harness.found("revenue") == ["a/ledger"]
    harness.store.is_away = False
    await harness.learning.flush()
    assert len(harness.store.uses) == 1
    harness.store.is_away = True
    await harness.learning.flush()
    assert len(harness.notified) == 2


async def test_pending_uses_are_stored_at_close(harness: UsageHarness) -> None:
    await harness.learning.start()
    await harness.store.was_read.wait()
    harness.learning.learn_use(harness.use())
    await harness.learning.close()
    assert [use.tool for use in harness.store.uses] == ["a/ledger"]


async def test_uses_of_long_ago_are_forgotten(harness: UsageHarness) -> None:
    harness.learning.learn_use(harness.use())
    await harness.learning.flush()
    harness.clock.advance(181 * DAY_S)
    await harness.learning.flush()
    assert harness.learning.of("ann") is None
    assert harness.found("revenue") == []


async def test_memory_is_bounded_by_forgetting_who_has_not_been_there_for_longest(harness: UsageHarness) -> None:
    learning = harness.learner(max_uses=3)
    for number, tenant in enumerate(["ann", "bob", "cid", "dan"]):
        learning.learn_use(harness.use(f"report {'abcd'[number]}x", tenant))
    await learning.flush()
    assert learning.of("ann") is None
    assert learning.of("dan") is not None
    for number in range(6):
        learning.learn_use(harness.use("revenue", "dan", f"t/tool{number}"))
    await learning.flush()
    usage = learning.of("dan")
    assert usage is not None
    assert usage.size == 3


@pytest.mark.promise("search.learns")
@pytest.mark.parametrize(
    ("changes", "ok", "replayed", "is_learnt"),
    [
        ({}, True, False, True),
        ({}, False, False, False),
        ({}, True, True, False),
        ({"purpose": ""}, True, False, False),
        ({"mode": Mode.DRY_RUN}, True, False, False),
        ({"mode": Mode.SUBMIT}, True, False, False),
    ],
)
async def test_only_successful_calls_with_a_purpose_are_learnt_from(
    harness: UsageHarness, changes: dict[str, object], ok: bool, replayed: bool, is_learnt: bool
) -> None:
    call = Call("id", "a/ledger", {}, Principal("ann"), ExecContext(agent_id="sub"), purpose="quarterly revenue")
    call = call._replace(**changes)  # type: ignore[arg-type]
    result = ToolResult(ok=ok, call_id="id", tool="a/ledger", replayed=replayed)
    harness.learning.learn_from_call(SettledCall(call, None, None, result, (), 0))
    await harness.learning.flush()
    expected = [ToolUse("ann", "a/ledger", "sub", "quarterly revenue", harness.clock.unix_ms())] if is_learnt else []
    assert harness.store.uses == expected
