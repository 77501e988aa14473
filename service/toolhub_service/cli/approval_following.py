"""Following approvals across restarts of the hub: what was missed is asked for, and nothing is told twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

import grpc

from toolhub.v1 import approval_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub_service.cli.approval_view import is_open
from toolhub_service.cli.coming_back import Pauses
from toolhub_service.cli.connection import Connection, status_of

_PAUSE_MAX_S = 5.0
_REMEMBERED_MAX = 10_000
_PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
    }
)
"""How a watch ends that may be begun again; CANCELLED comes from a server that was stopped."""


class Following:
    """Iterate over it: every pending approval, then each change, for ever. Raises grpc.RpcError when it is refused."""

    def __init__(
        self,
        connection: Connection,
        tool: str,
        *,
        lost: Callable[[float], object] = lambda _: None,
        found: Callable[[], object] = lambda: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`lost` is told that the hub is gone and in how many seconds it is asked again, `found` that it is back."""
        self._connection = connection
        self._stub = ApprovalServiceStub(connection.channel)
        self._request = pb.WatchApprovalsRequest(tool=tool)
        self._lost = lost
        self._found = found
        self._pause = pause
        self._told: dict[str, approval_pb2.Approval] = {}

    def __iter__(self) -> Generator[approval_pb2.Approval, None, None]:
        self._check()
        pauses = Pauses(_PAUSE_MAX_S)
        while True:
            broken: grpc.RpcError | None = None
            try:
                for approval in self._watch():
                    pauses.went_well()
                    yield approval
            except grpc.RpcError as error:
                code, _, reason = status_of(error)
                if code not in _PASSING and reason:
                    raise
                broken = error
            pause_s = pauses.after(broken)
            self._lost(pause_s)
            self._pause(pause_s)

    def _check(self) -> None:
        """Raises what the first question is refused with: a hub that never was there is not waited for."""
        connection, request = self._connection, pb.ListApprovalsRequest(page_size=1)
        self._stub.ListApprovals(request, timeout=connection.timeout_s, metadata=connection.metadata)

    def _watch(self) -> Iterator[approval_pb2.Approval]:
        """One stream of the hub. What was open before it began and is not pending now is looked up by itself."""
        answers = self._stub.WatchApprovals(self._request, metadata=self._connection.metadata)
        try:
            answers.initial_metadata()  # from here on the hub misses nothing
            for approval in self._looked_up():
                yield from self._new(approval)
            for answer in answers:
                yield from self._new(answer.approval)
        finally:
            answers.cancel()

    def _looked_up(self) -> Iterator[approval_pb2.Approval]:
        for told in [told for told in self._told.values() if is_open(told)]:
            request, connection = pb.GetApprovalRequest(approval_id=told.approval_id), self._connection
            try:
                answer = self._stub.GetApproval(request, timeout=connection.timeout_s, metadata=connection.metadata)
            except grpc.RpcError as error:
                if status_of(error)[0] is not grpc.StatusCode.NOT_FOUND:
                    raise
                del self._told[told.approval_id]  # a hub that has forgotten it, or another one
            else:
                yield answer.approval
        self._found()

    def _new(self, approval: approval_pb2.Approval) -> Iterator[approval_pb2.Approval]:
        """The approval, unless this state of it has been told."""
        told = self._told.pop(approval.approval_id, None)
        self._told[approval.approval_id] = approval
        if len(self._told) > _REMEMBERED_MAX:
            del self._told[next(iter(self._told))]
        if told is None or told.state != approval.state:
            yield approval
