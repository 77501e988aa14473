"""Two hubs, one Redis, one ComfyUI: every job ends exactly once, and what it made is read at either hub."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fakes.comfyui import How, Op, fake_comfyui
from tests.rpc.comfy_hub import IMPATIENT, POLICY, ComfyClient, write_sources
from tests.rpc.principals import hubs_of, merged

JOBS = 40


@pytest.mark.slow
@pytest.mark.promise("workflow.never-twice", "jobs.remote-once")
async def test_every_job_of_two_hubs_ends_once(tmp_path: Path, redis_url: str) -> None:
    async with fake_comfyui() as comfy:
        folder = write_sources(tmp_path / "shared", comfy.url)
        settings = merged(
            IMPATIENT,
            {
                "stores": {"redis_url": redis_url},
                "artifacts": {"folder": str(tmp_path / "artifacts")},
                "sources": {"file": str(folder / "sources.yaml")},
                "auth": {"modes": ["insecure-local"]},
                "jobs": {"max_running": JOBS},
            },
        )
        for at in range(5):  # some starts are never clearly answered
            comfy.fault(Op.SUBMIT, (How.LOSE_ANSWER, How.ERROR_AFTER, How.DROP)[at % 3])
        async with hubs_of(tmp_path, settings, [], [], policy=POLICY) as hubs:
            agents = [ComfyClient(hub.channel) for hub in hubs]
            await asyncio.gather(*(agent.refresh() for agent in agents))
            tasks = [agents[at % 2].submit("blur", {"color": at}) for at in range(JOBS)]
            jobs = await asyncio.gather(*tasks)
            ends = [history[-1] for history in await asyncio.gather(*(agents[0].ended(job) for job in jobs))]
            pictures = await asyncio.gather(*(agents[(at + 1) % 2].pictures(end) for at, end in enumerate(ends)))
        assert len({picture for (picture,) in pictures}) == JOBS
        assert len(comfy.submitted) == JOBS
        assert set(comfy.submissions().values()) == {1}
