"""What every store of jobs must do, for all processes. Inherit `JobStoreSuite` and give an empty store.

Fixtures of the subclass: `store` (not started yet, so that a test may listen first), `other` (a second instance on the
same storage, as another process has it, not started either; None where nothing is shared). The suite closes both.

job_store_changes_suite.py   creating and changing: compare-and-set, histories
job_store_looks_suite.py     finding and listening
job_store_care_suite.py      runners, sweeps, expiry, counts
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.ports.job_store_care_suite import JobStoreSweepSuite
from tests.ports.job_store_changes_suite import JobStoreChangesSuite
from tests.ports.job_store_looks_suite import JobStoreReadsSuite
from tests.ports.recording_listener import JobListener
from toolhub_service.domain.job_ports import JobStore


class JobStoreSuite(JobStoreChangesSuite, JobStoreReadsSuite, JobStoreSweepSuite):
    @pytest.fixture
    def listener(self) -> JobListener:
        return JobListener()

    @pytest.fixture
    async def started(self, store: JobStore, listener: JobListener) -> AsyncIterator[JobStore]:
        store.listen(listener)
        await store.start()
        yield store
        await store.close()

    @pytest.fixture
    async def another(self, other: JobStore | None, started: JobStore) -> AsyncIterator[JobStore]:
        """The second instance, or the first once more where nothing is shared."""
        if other is None:
            yield started
        else:
            await other.start()
            yield other
            await other.close()
