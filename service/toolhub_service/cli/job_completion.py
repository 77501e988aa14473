"""Completion of job ids."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_job(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest jobs whose ids begin so, each with its tool and state; none when the hub does not say."""
    from click.shell_completion import CompletionItem

    from toolhub.v1 import job_service_pb2 as pb
    from toolhub.v1.job_service_pb2_grpc import JobServiceStub
    from toolhub_service.cli.completion_asking import MOST, WAIT_S, asked
    from toolhub_service.cli.job_view import state_of

    with suppress(click.ClickException), asked(context) as connection:
        request = pb.ListJobsRequest(page_size=MOST)
        found = JobServiceStub(connection.channel).ListJobs(request, timeout=WAIT_S, metadata=connection.metadata).jobs
        fitting = [job for job in found if job.job_id.startswith(incomplete)]
        return [CompletionItem(job.job_id, help=f"{job.tool} {state_of(job.status).lower()}") for job in fitting]
    return []
