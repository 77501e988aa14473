"""The same client without asyncio: `with connect_sync() as hub:`. The connection lives in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, Final, TypeVar, Unpack

from toolhub.v1 import approval_pb2, approval_service_pb2, job_pb2, tool_pb2, tool_service_pb2
from toolhub_client.answer import Answer, Chunk, DryRun, Progress
from toolhub_client.artifacts import Artifact, OnProgress
from toolhub_client.channel import Target
from toolhub_client.context import (
    ApprovalFields,
    ArtifactFields,
    CallOptions,
    ConnectOptions,
    ExportForm,
    JobFields,
    ToolFields,
    WatchedJobFields,
)
from toolhub_client.faces import Face, FaceName
from toolhub_client.hub import Hub, connect
from toolhub_client.watches import OnOutage

T = TypeVar("T")
_END: Final = object()


@contextmanager
def connect_sync(address: str | Target = "", **options: Unpack[ConnectOptions]) -> Iterator[SyncHub]:
    """As `toolhub_client.connect`. The hub may be used from any thread, also from several at once."""
    connecting = connect(address, **options)
    hub = _run(connecting.__aenter__())
    try:
        yield SyncHub(hub)
    finally:
        _run(connecting.__aexit__(None, None, None))


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all hubs of the process, and never closed: grpc.aio tells a loop of what ended after it was closed."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="toolhub-client", daemon=True).start()
    return loop


os.register_at_fork(after_in_child=_loop.cache_clear)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Its result; what interrupts the wait cancels the work."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _each(items: AsyncIterator[T]) -> Iterator[T]:
    async def next_item() -> Any:
        return await anext(items, _END)

    async def close() -> None:
        if (aclose := getattr(items, "aclose", None)) is not None:
            await aclose()

    try:
        while (item := _run(next_item())) is not _END:
            yield item
    finally:
        _run(close())


async def _from_thread(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """What an iterable gives, each when it is wanted. One that waits, as at a pipe, holds up neither the loop nor, for
    the thread is a daemon, the end of the program."""
    loop = asyncio.get_running_loop()
    wanted: SimpleQueue[asyncio.Future[Any] | None] = SimpleQueue()

    def give() -> None:
        iterator = iter(items)
        while (asked := wanted.get()) is not None:
            try:
                settle = partial(_settle, asked, item=next(iterator, _END))
            except BaseException as error:  # noqa: BLE001 - raised again by the loop that waits for it
                settle = partial(_settle, asked, error=error)
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=give, name="toolhub-client-source", daemon=True).start()
    try:
        while True:
            asked = loop.create_future()
            wanted.put(asked)
            if (item := await asked) is _END:
                return
            yield item
    finally:
        wanted.put(None)


def _settle(asked: asyncio.Future[Any], *, item: object = None, error: BaseException | None = None) -> None:
    if asked.cancelled():
        return
    if error is None:
        asked.set_result(item)
    else:
        asked.set_exception(error)


class SyncFace:
    """As `Face`, method for method."""

    def __init__(self, face: Face) -> None:
        self._face = face

    def definitions(self, *, timeout: float | None = None) -> list[dict[str, Any]]:
        return _run(self._face.definitions(timeout=timeout))

    def invoke(self, tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> Answer:
        return _run(self._face.invoke(tool, args, **options))

    def execute(self, name: str, arguments: Mapping[str, Any] | None = None) -> str:
        return _run(self._face.execute(name, arguments))

    def run(self, request: Mapping[str, Any]) -> Any:
        return _run(self._face.run(request))


class SyncHub:
    """As `Hub`, method for method; what is an async iterator there is an iterator here."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def invoke(self, tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> Answer:
        return _run(self._hub.invoke(tool, args, **options))

    def face(self, name: FaceName) -> SyncFace:
        return SyncFace(self._hub.face(name))

    def dry_run(self, tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> DryRun:
        return _run(self._hub.dry_run(tool, args, **options))

    def commit(self, dry_run: DryRun, *, timeout: float | None = None) -> Answer:
        return _run(self._hub.commit(dry_run, timeout=timeout))

    def invoke_stream(
        self, tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> Iterator[Progress | Chunk | Answer]:
        return _each(self._hub.invoke_stream(tool, args, **options))

    def run_tool_call(self, call: object, **options: Unpack[CallOptions]) -> dict[str, Any]:
        return _run(self._hub.run_tool_call(call, **options))

    def server_info(self, *, timeout: float | None = None) -> tool_service_pb2.GetServerInfoResponse:
        return _run(self._hub.server_info(timeout=timeout))

    def watch_tools(
        self,
        *,
        resume_token: str = "",
        attempts: int | None = 16,
        on_outage: OnOutage | None = None,
        **where: Unpack[ToolFields],
    ) -> Iterator[tool_service_pb2.ToolServiceWatchToolsResponse]:
        return _each(self._hub.watch_tools(resume_token=resume_token, attempts=attempts, on_outage=on_outage, **where))

    def list_tools(self, *, timeout: float | None = None, **where: Unpack[ToolFields]) -> Iterator[tool_pb2.ToolSpec]:
        return _each(self._hub.list_tools(timeout=timeout, **where))

    def search(
        self, query: str, *, limit: int = 10, timeout: float | None = None, **where: Unpack[ToolFields]
    ) -> Sequence[tool_service_pb2.SearchHit]:
        return _run(self._hub.search(query, limit=limit, timeout=timeout, **where))

    def get_tool(self, name: str, *, timeout: float | None = None) -> tool_pb2.ToolSpec:
        return _run(self._hub.get_tool(name, timeout=timeout))

    def export(
        self, form: ExportForm = "openai", *, timeout: float | None = None, **where: Unpack[ToolFields]
    ) -> tuple[list[dict[str, Any]], Mapping[str, str]]:
        return _run(self._hub.export(form, timeout=timeout, **where))

    def submit_job(
        self, tool: str, args: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> job_pb2.Job:
        return _run(self._hub.submit_job(tool, args, **options))

    def get_job(self, job_id: str, *, timeout: float | None = None) -> job_pb2.Job:
        return _run(self._hub.get_job(job_id, timeout=timeout))

    def list_jobs(self, *, timeout: float | None = None, **where: Unpack[JobFields]) -> Iterator[job_pb2.Job]:
        return _each(self._hub.list_jobs(timeout=timeout, **where))

    def watch_job(
        self,
        job_id: str,
        *,
        after_sequence: int = 0,
        from_first: bool = False,
        attempts: int | None = 16,
        on_outage: OnOutage | None = None,
    ) -> Iterator[job_pb2.JobStatus]:
        return _each(
            self._hub.watch_job(
                job_id, after_sequence=after_sequence, from_first=from_first, attempts=attempts, on_outage=on_outage
            )
        )

    def watch_jobs(
        self,
        job_ids: Sequence[str] = (),
        *,
        after_sequences: Mapping[str, int] | None = None,
        attempts: int | None = 16,
        on_outage: OnOutage | None = None,
        **where: Unpack[WatchedJobFields],
    ) -> Iterator[job_pb2.JobStatus]:
        return _each(
            self._hub.watch_jobs(
                job_ids, after_sequences=after_sequences, attempts=attempts, on_outage=on_outage, **where
            )
        )

    def job_answer(self, job_id: str, *, timeout: float | None = None) -> Answer:
        return _run(self._hub.job_answer(job_id, timeout=timeout))

    def cancel_job(self, job_id: str, *, reason: str = "", timeout: float | None = None) -> job_pb2.JobStatus:
        return _run(self._hub.cancel_job(job_id, reason=reason, timeout=timeout))

    def put_artifact(
        self,
        content: bytes | Path | Iterable[bytes],
        *,
        name: str | None = None,
        media_type: str = "",
        attempts: int = 8,
        on_progress: OnProgress | None = None,
        stall_s: float | None = None,
        timeout: float | None = None,
    ) -> Artifact:
        """As `Hub.put_artifact`; an iterable is asked for its chunks in a thread of its own."""

        async def put() -> Artifact:
            sent = content if isinstance(content, bytes | Path) else _from_thread(content)
            try:
                return await self._hub.put_artifact(
                    sent,
                    name=name,
                    media_type=media_type,
                    attempts=attempts,
                    on_progress=on_progress,
                    stall_s=stall_s,
                    timeout=timeout,
                )
            finally:
                if isinstance(sent, AsyncGenerator):
                    await sent.aclose()

        return _run(put())

    def read_artifact(
        self,
        artifact: str | Artifact,
        *,
        attempts: int = 8,
        on_progress: OnProgress | None = None,
        stall_s: float | None = None,
    ) -> Iterator[bytes]:
        return _each(self._hub.read_artifact(artifact, attempts=attempts, on_progress=on_progress, stall_s=stall_s))

    def download_artifact(
        self,
        artifact: str | Artifact,
        file: BinaryIO,
        *,
        attempts: int = 8,
        on_progress: OnProgress | None = None,
        stall_s: float | None = None,
        timeout: float | None = None,
    ) -> Artifact:
        return _run(
            self._hub.download_artifact(
                artifact, file, attempts=attempts, on_progress=on_progress, stall_s=stall_s, timeout=timeout
            )
        )

    def get_artifact(self, artifact: str | Artifact, *, timeout: float | None = None) -> bytes:
        return _run(self._hub.get_artifact(artifact, timeout=timeout))

    def list_artifacts(self, *, timeout: float | None = None, **where: Unpack[ArtifactFields]) -> Iterator[Artifact]:
        return _each(self._hub.list_artifacts(timeout=timeout, **where))

    def delete_artifact(self, artifact_id: str, *, timeout: float | None = None) -> None:
        return _run(self._hub.delete_artifact(artifact_id, timeout=timeout))

    def list_approvals(
        self, *, timeout: float | None = None, **where: Unpack[ApprovalFields]
    ) -> Iterator[approval_pb2.Approval]:
        return _each(self._hub.list_approvals(timeout=timeout, **where))

    def get_approval(self, approval_id: str, *, timeout: float | None = None) -> approval_pb2.Approval:
        return _run(self._hub.get_approval(approval_id, timeout=timeout))

    def watch_approvals(
        self,
        *,
        tool: str = "",
        resume_token: str = "",
        attempts: int | None = 16,
        on_outage: OnOutage | None = None,
    ) -> Iterator[approval_service_pb2.WatchApprovalsResponse]:
        return _each(
            self._hub.watch_approvals(tool=tool, resume_token=resume_token, attempts=attempts, on_outage=on_outage)
        )

    def approve(
        self,
        approval: approval_pb2.Approval,
        *,
        comment: str = "",
        answer: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> approval_pb2.Approval:
        return _run(self._hub.approve(approval, comment=comment, answer=answer, timeout=timeout))

    def reject(
        self, approval: approval_pb2.Approval, *, comment: str = "", timeout: float | None = None
    ) -> approval_pb2.Approval:
        return _run(self._hub.reject(approval, comment=comment, timeout=timeout))
