"""SubmitJob: steps 1 to 5 now, the rest as a job. Whatever comes of the steps, there is a job that tells it."""

from __future__ import annotations

from toolhub_service.domain.call import Call, Mode
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.job import Job
from toolhub_service.domain.job_ports import JobStore
from toolhub_service.domain.ports import Catalog, Invoker
from toolhub_service.domain.result import ToolResult
from toolhub_service.runtime.jobs.accept import Acceptance
from toolhub_service.runtime.sinks import SILENT


class Submission:
    def __init__(self, invoker: Invoker, acceptance: Acceptance, store: JobStore, catalog: Catalog) -> None:
        self._invoker = invoker
        self._acceptance = acceptance
        self._store = store
        self._catalog = catalog

    async def submit(self, call: Call) -> Job:
        """The durable job: QUEUED, AWAITING_APPROVAL, or FAILED where a step refused.

        Raises ToolFailure IDEMPOTENCY_CONFLICT, RATE_LIMITED or TOOL_UNAVAILABLE when there is no job.
        """
        asked = call._replace(mode=Mode.SUBMIT, job_id=self._acceptance.new_job_id(call), deadline_s=None)
        result = await self._invoker.invoke(asked, SILENT)
        assert isinstance(result, ToolResult)  # a plan answers a dry run only
        if result.job is not None:
            return await self._read(result.job.job_id)
        error = result.error
        assert error is not None  # nothing was accepted, and it says why
        is_unclear = "may_be_job_id" in error.details
        if error.kind is ErrorKind.IDEMPOTENCY_CONFLICT or error.details.get("limit") == "jobs.max_open" or is_unclear:
            raise ToolFailure(error)
        spec, approval_id = self._catalog.get(call.tool), str(error.details.get("approval_id", ""))
        if error.kind is ErrorKind.APPROVAL_REQUIRED and approval_id and spec is not None:
            return await self._acceptance.keep_waiting(asked, spec, error)
        return await self._acceptance.keep_refused(asked, spec, result)

    async def _read(self, job_id: str) -> Job:
        """The job that was accepted. Raises ToolFailure TOOL_UNAVAILABLE, with its id, when the store has gone."""
        try:
            job = await self._store.get(job_id)
        except ToolFailure as gone:
            raise refuse(
                ErrorKind.TOOL_UNAVAILABLE,
                f"The job was accepted as {job_id} and will run, but the store of jobs does not answer now. Do not "
                "submit it again; ask for it in a moment.",
                retryable=False,
                job_id=job_id,
            ) from gone
        assert job is not None  # it was durable a moment ago
        return job
