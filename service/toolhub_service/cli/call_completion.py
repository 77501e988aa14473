"""Completion of tools that the policy could allow, and of approvals that wait for a decision."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_PAGE = 1_000


def complete_tool(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tools whose names begin so, each with what it does; none when the hub does not say."""
    from click.shell_completion import CompletionItem

    from toolhub.v1 import tool_service_pb2 as pb
    from toolhub_service.cli.completion_asking import WAIT_S, asked
    from toolhub_service.cli.search_view import first_line

    found: list[CompletionItem] = []
    with suppress(click.ClickException), asked(context) as connection:
        request = pb.ListToolsRequest(page_size=_PAGE)
        while True:
            page = connection.tools.ListTools(request, timeout=WAIT_S, metadata=connection.metadata)
            fitting = [tool for tool in page.tools if tool.name.startswith(incomplete)]
            found += [CompletionItem(tool.name, help=first_line(tool.description)) for tool in fitting]
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
    return found


def complete_approval(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Pending approvals whose ids begin so, each with who asks for what; none when the hub does not say."""
    from click.shell_completion import CompletionItem

    from toolhub.v1 import approval_pb2
    from toolhub.v1 import approval_service_pb2 as pb
    from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
    from toolhub_service.cli.completion_asking import MOST, WAIT_S, asked

    with suppress(click.ClickException), asked(context) as connection:
        request = pb.ListApprovalsRequest(states=[approval_pb2.APPROVAL_STATE_PENDING], page_size=MOST)
        stub = ApprovalServiceStub(connection.channel)
        found = stub.ListApprovals(request, timeout=WAIT_S, metadata=connection.metadata).approvals
        fitting = [each for each in found if each.approval_id.startswith(incomplete)]
        return [CompletionItem(each.approval_id, help=f"{each.principal} {each.tool}") for each in fitting]
    return []
