"""A worker that holds its jobs until it is killed: `python -m … <redis url> <room> <redelivery_s>`. Prints each job."""

from __future__ import annotations

import asyncio
import sys

from toolhub_service.job_engines.docket_engine import DocketEngine


async def main(redis_url: str, room: int, redelivery_s: float) -> None:
    engine = DocketEngine(redis_url, "jobs", room, redelivery_s)
    stopped = asyncio.Event()

    async def run(job_id: str) -> None:
        print(job_id, flush=True)
        await stopped.wait()

    await engine.start(run)
    print("serving", flush=True)
    await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
