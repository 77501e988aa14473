"""Completion of job ids, asked of the hub while somebody waits at a prompt: quickly, or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_WAIT_S = 1.0
_MOST = 100


def complete_job(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest jobs whose ids begin so, each with its tool and state; none when the hub does not say."""
    from click.shell_completion import CompletionItem

    from toolhub.v1 import job_service_pb2 as pb
    from toolhub.v1.job_service_pb2_grpc import JobServiceStub
    from toolhub_service.cli.connection import DEFAULT_ADDRESS, connected
    from toolhub_service.cli.job_view import state_of

    def given(name: str, variable: str) -> str:
        return str(context.params.get(name) or os.environ.get(variable, ""))

    address = given("address", "TOOLHUB_ADDRESS") or DEFAULT_ADDRESS
    ca_file = context.params.get("ca_file")
    try:
        with connected(address, given("api_key", "TOOLHUB_API_KEY"), ca_file, _WAIT_S) as connection:
            request = pb.ListJobsRequest(page_size=_MOST)
            stub = JobServiceStub(connection.channel)
            found = stub.ListJobs(request, timeout=connection.timeout_s, metadata=connection.metadata).jobs
    except click.ClickException:
        return []
    fitting = [job for job in found if job.job_id.startswith(incomplete)]
    return [CompletionItem(job.job_id, help=f"{job.tool} {state_of(job.status).lower()}") for job in fitting]
