"""ApprovalService: for people who approve, and for requesters who look up the decision."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from toolhub.v1 import approval_service_pb2 as pb
from toolhub.v1 import approval_service_pb2_grpc
from toolhub_service.domain.approval import ApprovalFilter
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.runtime.approvals.gate import Approvals, whose
from toolhub_service.runtime.approvals.watch import ApprovalNews
from toolhub_service.transport.convert.records import (
    from_approval,
    from_refused_answer,
    to_answer,
    to_approval_filter,
    to_decision,
)
from toolhub_service.transport.page_tokens import page_limit, page_of, read_cursor
from toolhub_service.transport.rpc import ServicerContext, current_principal

# Errors of a refused answer.
_UNFIT = frozenset({ErrorKind.INPUT_SCHEMA_INVALID, ErrorKind.INVALID_INPUT})


@dataclass(slots=True)
class ApprovalServicer(approval_service_pb2_grpc.ApprovalServiceServicer):
    """Deciding requires the role approver, which the policy layer has checked; without it, callers see their own
    approvals."""

    approvals: Approvals
    news: ApprovalNews

    async def ListApprovals(
        self, request: pb.ListApprovalsRequest, context: ServicerContext
    ) -> pb.ListApprovalsResponse:
        limit = page_limit(request.page_size)
        after = read_cursor(request.page_token)
        found, total = await self.approvals.page(
            current_principal(), to_approval_filter(request), after=after and after[:2], limit=limit + 1
        )
        page, token = page_of(found, limit, lambda approval: (approval.requested_at_unix_ms, approval.approval_id, 0))
        return pb.ListApprovalsResponse(
            approvals=[from_approval(approval) for approval in page], next_page_token=token, total_size=total
        )

    async def GetApproval(self, request: pb.GetApprovalRequest, context: ServicerContext) -> pb.GetApprovalResponse:
        if request.reveal:
            approval, args_json = await self.approvals.reveal(current_principal(), request.approval_id)
            return pb.GetApprovalResponse(approval=from_approval(approval), revealed_args_json=args_json)
        approval = await self.approvals.get(current_principal(), request.approval_id)
        return pb.GetApprovalResponse(approval=from_approval(approval))

    async def DecideApproval(
        self, request: pb.DecideApprovalRequest, context: ServicerContext
    ) -> pb.DecideApprovalResponse:
        try:
            approval = await self.approvals.decide(
                current_principal(),
                request.approval_id,
                to_decision(request.decision),
                request.comment,
                request.args_digest,
                to_answer(request.answer_json),
            )
        except ToolFailure as refused:
            if refused.error.kind not in _UNFIT:
                raise
            raise from_refused_answer(refused.error) from refused
        return pb.DecideApprovalResponse(approval=from_approval(approval))

    async def WatchApprovals(
        self, request: pb.WatchApprovalsRequest, context: ServicerContext
    ) -> AsyncIterator[pb.WatchApprovalsResponse]:
        principal = current_principal()
        own = whose(principal)
        where = ApprovalFilter(principal=own, tool=request.tool, owners=None if own else principal.owners)
        async with aclosing(self.news.watch(where, int(request.resume_token or 0))) as tail:
            await context.send_initial_metadata(())  # from here on no change is missed
            async for approval in tail:
                token = str(tail.seen_unix_ms or "")
                yield pb.WatchApprovalsResponse(approval=from_approval(approval), resume_token=token)
