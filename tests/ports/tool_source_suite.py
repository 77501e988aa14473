"""What every source of tools must do. Inherit `ToolSourceSuite` and give a source that offers at least one tool.

Fixture of the subclass: `source`, not started; the suite starts and closes it.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import abstractmethod
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.pin import pin_digest
from toolhub_service.domain.source import Discovery, ToolSource
from toolhub_service.domain.tool import ToolState
from toolhub_service.registry.names import check_name, check_not_reserved

READING_S = 60.0


async def read(source: ToolSource) -> Discovery:
    async with asyncio.timeout(READING_S):
        return await source.discover()


class ToolSourceSuite:
    """Behaviours of the ToolSource port."""

    @pytest.fixture
    @abstractmethod
    def source(self) -> ToolSource:
        raise NotImplementedError

    @pytest_asyncio.fixture
    async def started(self, source: ToolSource) -> AsyncIterator[ToolSource]:
        source.listen(lambda: None)
        await source.start()
        yield source
        await source.close()

    async def test_name_kind_trust_and_endpoint_do_not_change_by_reading(self, started: ToolSource) -> None:
        before = started.name, started.kind, started.trust, started.endpoint
        await read(started)
        assert (started.name, started.kind, started.trust, started.endpoint) == before
        assert re.fullmatch("[a-z0-9][a-z0-9_-]{0,63}", started.name)

    async def test_tools_of_a_source_have_unique_valid_names_in_its_namespace(self, started: ToolSource) -> None:
        names = [definition.spec.name for definition in (await read(started)).definitions]
        assert names
        assert len(set(names)) == len(names)
        for name in names:
            check_name(name)
            check_not_reserved(name)
            assert name.startswith(f"{started.name}/")

    async def test_its_tools_name_their_source_and_are_active(self, started: ToolSource) -> None:
        for definition in (await read(started)).definitions:
            assert definition.spec.source == started.name
            assert definition.spec.kind is started.kind
            assert definition.spec.state is ToolState.ACTIVE
            assert definition.spec.resource_id

    async def test_definitions_can_be_pinned_and_stay_the_same(self, started: ToolSource) -> None:
        first, second = [
            {d.spec.name: pin_digest(started.name, d.remote) for d in (await read(started)).definitions}
            for _ in range(2)
        ]
        assert first == second
        json.dumps([dict(d.remote) for d in (await read(started)).definitions])

    async def test_several_may_read_at_once(self, started: ToolSource) -> None:
        readings = await asyncio.gather(*(read(started) for _ in range(3)))
        assert len({tuple(sorted(d.spec.name for d in reading.definitions)) for reading in readings}) == 1

    async def test_a_cancelled_reading_does_not_spoil_the_next(self, started: ToolSource) -> None:
        reading = asyncio.create_task(started.discover())
        await asyncio.wait([reading], timeout=0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert (await read(started)).definitions

    async def test_closing_twice_is_no_error_and_reading_after_that_fails_typed(self, started: ToolSource) -> None:
        await started.close()
        await started.close()
        with pytest.raises(ToolFailure) as caught:
            await read(started)
        assert caught.value.error.message

    async def test_a_part_that_was_never_started_can_be_closed(self, source: ToolSource) -> None:
        await source.close()
        assert list(source.diagnostics()) == list(source.diagnostics())
