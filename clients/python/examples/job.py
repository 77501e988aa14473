"""Long work: submit a job and follow it to its end, whatever happens to the hub meanwhile.

Start a hub with `make run`, then: python clients/python/examples/job.py [ADDRESS] [TOOL] [ARGUMENTS as JSON]
"""

from __future__ import annotations

import asyncio
import json
import sys

from toolhub.v1 import job_state_pb2
from toolhub_client import FINAL_STATES, Answer, connect


async def main(
    address: str = "127.0.0.1:50051", tool: str = "core/util.hash.sha256Text", args: str = '{"text": "hello"}'
) -> None:
    async with connect(address) as hub:
        job = await hub.submit_job(tool, json.loads(args), purpose="show a job")
        async for status in hub.watch_job(job.job_id):
            print(status.sequence, job_state_pb2.JobState.Name(status.state), f"{status.progress.step:g}", flush=True)
            if status.state in FINAL_STATES:
                print("answer:", json.dumps(Answer(status.result).unwrap()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
