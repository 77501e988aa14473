"""JobService: calls that outlive their RPC."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from toolhub.v1 import job_service_pb2 as pb
from toolhub.v1 import job_service_pb2_grpc
from toolhub_service.domain.call import Mode
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.job import JobStatus
from toolhub_service.domain.job_ports import JobService, JobWatching
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.guards.foreign_text import without_controls
from toolhub_service.runtime.call_ids import CallIds
from toolhub_service.runtime.jobs.accept import Submission
from toolhub_service.runtime.jobs.watch import visible
from toolhub_service.transport.convert.call import to_call, wants_struct
from toolhub_service.transport.convert.records import (
    from_job,
    shows_struct,
    to_job_filter,
    to_watched,
    write_status,
)
from toolhub_service.transport.page_tokens import page_limit, page_of, read_cursor
from toolhub_service.transport.rpc import ServicerContext, current_principal

# Messages kept for other watchers of the same job.
_SHOWN_MAX = 2_048


@dataclass(slots=True)
class JobServicer(job_service_pb2_grpc.JobServiceServicer):
    submission: Submission
    job_service: JobService
    watching: JobWatching
    clock: Clock
    randomness: Randomness
    _call_ids: CallIds = field(init=False)
    _shown: OrderedDict[tuple[str, int, int, bool], pb.WatchJobResponse] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._call_ids = CallIds(self.clock, self.randomness)

    async def SubmitJob(self, request: pb.SubmitJobRequest, context: ServicerContext) -> pb.SubmitJobResponse:
        call = to_call(
            request,
            current_principal(),
            call_id=self._call_ids.next(),
            deadline_s=None,  # a job's deadline comes from its budget, not from the RPC
            mode=Mode.SUBMIT,
        )
        job = await self.submission.submit(call)
        return pb.SubmitJobResponse(job=from_job(job, as_struct=wants_struct(request)))

    async def GetJob(self, request: pb.GetJobRequest, context: ServicerContext) -> pb.GetJobResponse:
        job = await self.job_service.get(current_principal(), request.job_id)
        return pb.GetJobResponse(job=from_job(job, as_struct=shows_struct(request.result_encoding)))

    async def ListJobs(self, request: pb.ListJobsRequest, context: ServicerContext) -> pb.ListJobsResponse:
        limit = page_limit(request.page_size)
        after = read_cursor(request.page_token)
        found, total = await self.job_service.page(
            current_principal(), to_job_filter(request), after=after and after[:2], limit=limit + 1
        )
        page, token = page_of(found, limit, lambda job: (job.created_at_unix_ms, job.job_id, 0))
        return pb.ListJobsResponse(
            jobs=[from_job(job, as_struct=False, with_result=False) for job in page],
            next_page_token=token,
            total_size=total,
        )

    async def WatchJob(
        self, request: pb.WatchJobRequest, context: ServicerContext
    ) -> AsyncIterator[pb.WatchJobResponse]:
        job = await self.job_service.get(current_principal(), request.job_id)
        as_struct = shows_struct(request.result_encoding)
        watch = self.watching.watch(job, request.after_sequence, from_first=request.from_first)
        async with aclosing(watch) as statuses:
            async for status in statuses:
                yield self._message(status, as_struct=as_struct)

    async def WatchJobs(
        self, request: pb.WatchJobsRequest, context: ServicerContext
    ) -> AsyncIterator[pb.WatchJobsResponse]:
        principal = current_principal()
        as_struct = shows_struct(request.result_encoding)
        where = visible(principal, to_watched(request))
        after = dict(request.after_sequences)
        jobs = [await self.job_service.get(principal, job_id) for job_id in request.job_ids]
        for job_id in () if request.job_ids else after:
            with suppress(ToolFailure):  # a deleted job has no more entries
                jobs.append(await self.job_service.get(principal, job_id))
        matching = [job for job in jobs if where is not None and where.matches(job)]
        watch = self.watching.watch_many(matching, None if request.job_ids else where, after)
        async with aclosing(watch) as statuses:
            await context.send_initial_metadata(())  # from here on no change is missed
            async for status in statuses:
                yield pb.WatchJobsResponse(status=self._message(status, as_struct=as_struct).status)

    async def CancelJob(self, request: pb.CancelJobRequest, context: ServicerContext) -> pb.CancelJobResponse:
        job = await self.job_service.cancel(current_principal(), request.job_id, without_controls(request.reason))
        response = pb.CancelJobResponse()
        write_status(response.status, job.status, as_struct=False)
        return response

    def _message(self, status: JobStatus, *, as_struct: bool) -> pb.WatchJobResponse:
        """Return the message, created once for all watchers of the job; results, which may be large, are not kept."""
        key = (status.job_id, status.sequence, status.at_unix_ms, as_struct)  # a job with a key may reuse its id
        message = self._shown.get(key)
        if message is None:
            message = pb.WatchJobResponse()
            write_status(message.status, status, as_struct=as_struct)
            if status.result is None:
                self._shown[key] = message
                if len(self._shown) > _SHOWN_MAX:
                    self._shown.popitem(last=False)
        return message
