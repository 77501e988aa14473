"""A research task from end to end: read a page, remember it, query a database, take a screenshot, send the report.

Sending asks a person. It is a job, so it waits for the answer by itself:

    TOOLHUB_API_KEY=… python examples/research_agent/agent.py https://example.com/ "SELECT region, total FROM sales"
    TOOLHUB_API_KEY=… toolhub approvals approve APPROVAL_ID    # as another person, with the id that the program prints
"""

from __future__ import annotations

import asyncio
import sys

from toolhub.v1 import job_state_pb2
from toolhub_client import FINAL_STATES, Answer, Context, Hub, connect

PURPOSE = "write the weekly report"


async def research(hub: Hub, url: str, query: str) -> dict[str, object]:
    """The message to send: what the page says, what the database holds, and a picture."""
    fetched = await hub.invoke("core/web.fetch", {"url": url, "maxChars": 2_000}, purpose=PURPOSE)
    page = fetched.unwrap()["pages"][0]
    if "error" in page:
        raise SystemExit(f"The page could not be read: {page['error']['message']}")
    # What a page says is remembered as untrusted: whoever reads it later is told so.
    note = {"text": f"{page['title']}: {page['text'][:200]}", "tags": ["report"], "source": page["url"]}
    (await hub.invoke("core/memory.write", note, purpose=PURPOSE)).unwrap()
    found = await hub.invoke("core/db.query", {"connection": "sales", "query": query, "limit": 20}, purpose=PURPOSE)
    lines = [" | ".join(map(str, row)) for row in found.unwrap()["rows"]]
    shot = await hub.invoke("core/web.screenshot", {"url": url}, purpose=PURPOSE)
    return {
        "title": "Weekly report",
        "message": "\n".join([page["title"], *lines]),
        "filePaths": [shot.unwrap()["path"]],
    }


async def send(hub: Hub, message: dict[str, object]) -> Answer:
    """Waits for the person who is asked, and for the message to leave."""
    job = await hub.submit_job("core/media.send", message, purpose=PURPOSE)
    async for status in hub.watch_job(job.job_id):
        if status.state == job_state_pb2.JOB_STATE_AWAITING_APPROVAL:
            asked = await hub.get_job(job.job_id)
            print(f"waits for a person: toolhub approvals approve {asked.approval_id}", flush=True)
        if status.state in FINAL_STATES:
            return Answer(status.result)
    raise SystemExit("The hub has ended the stream before the job.")


async def main(url: str, query: str) -> None:
    # Calls of one request share a workspace: the screenshot is there when the message is sent.
    async with connect(context=Context(request_id="weekly-report")) as hub:
        sent = await send(hub, await research(hub, url, query))
        print("sent by", sent.unwrap()["channel"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
