"""JobService: calls that outlive their RPC."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1 import job_service_pb2_grpc
from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.job import Job, JobFilter, JobStatus
from toolhub_service.domain.job_ports import JobDesk, JobWatching
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.transport.convert.call import new_call_id, to_submitted_call, wants_struct
from toolhub_service.transport.convert.records import from_job, shows_struct, to_job_filter, write_status
from toolhub_service.transport.page_tokens import read_cursor, write_cursor
from toolhub_service.transport.rpc import ServicerContext, current_principal

_PAGE_DEFAULT = 100
_PAGE_MAX = 1_000
# Messages kept for the other watchers of the same job.
_SHOWN_MAX = 2_048


class Jobs(JobDesk, Protocol):
    """`JobDesk` with pages."""

    async def page(
        self, principal: Principal, where: JobFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Job], int]: ...


class Submits(Protocol):
    async def submit(self, call: Call) -> Job: ...


@dataclass(slots=True)
class JobServicer(job_service_pb2_grpc.JobServiceServicer):
    submission: Submits
    desk: Jobs
    watching: JobWatching
    clock: Clock
    randomness: Randomness
    _shown: OrderedDict[tuple[str, int, int, bool], pb.WatchJobResponse] = field(default_factory=OrderedDict)

    async def SubmitJob(self, request: pb.SubmitJobRequest, context: ServicerContext) -> pb.SubmitJobResponse:
        call_id = new_call_id(self.clock, self.randomness)
        job = await self.submission.submit(to_submitted_call(request, current_principal(), call_id=call_id))
        return pb.SubmitJobResponse(job=from_job(job, as_struct=wants_struct(request)))

    async def GetJob(self, request: pb.GetJobRequest, context: ServicerContext) -> pb.GetJobResponse:
        job = await self.desk.get(current_principal(), request.job_id)
        return pb.GetJobResponse(job=from_job(job, as_struct=shows_struct(request.result_encoding)))

    async def ListJobs(self, request: pb.ListJobsRequest, context: ServicerContext) -> pb.ListJobsResponse:
        limit = min(request.page_size or _PAGE_DEFAULT, _PAGE_MAX)
        after = read_cursor(request.page_token)
        jobs, total = await self.desk.page(
            current_principal(), to_job_filter(request), after=after and after[:2], limit=limit + 1
        )
        page = jobs[:limit]
        token = write_cursor((page[-1].created_at_unix_ms, page[-1].job_id, 0)) if len(jobs) > limit else ""
        return pb.ListJobsResponse(
            jobs=[from_job(job, as_struct=False, with_result=False) for job in page],
            next_page_token=token,
            total_size=total,
        )

    async def WatchJob(
        self, request: pb.WatchJobRequest, context: ServicerContext
    ) -> AsyncIterator[pb.WatchJobResponse]:
        job = await self.desk.get(current_principal(), request.job_id)
        as_struct = shows_struct(request.result_encoding)
        async with aclosing(self.watching.watch(job, request.after_sequence)) as statuses:
            async for status in statuses:
                yield self._message(status, as_struct=as_struct)

    async def CancelJob(self, request: pb.CancelJobRequest, context: ServicerContext) -> pb.CancelJobResponse:
        job = await self.desk.cancel(current_principal(), request.job_id, request.reason)
        response = pb.CancelJobResponse()
        write_status(response.status, job.status, as_struct=False)
        return response

    def _message(self, status: JobStatus, *, as_struct: bool) -> pb.WatchJobResponse:
        """Made once for all who watch the job; a result, which may be large, is not kept."""
        key = (status.job_id, status.sequence, status.at_unix_ms, as_struct)  # a keyed job may come again under its id
        message = self._shown.get(key)
        if message is None:
            message = pb.WatchJobResponse()
            write_status(message.status, status, as_struct=as_struct)
            if status.result is None:
                self._shown[key] = message
                if len(self._shown) > _SHOWN_MAX:
                    self._shown.popitem(last=False)
        return message
