"""Sends the recorded requests to the fake n8n, entry by entry, and keeps its answers.

What the recordings do not hold is told here: headers that were redacted or not noted, bodies that are no JSON, and at
which entries time had passed (an execution went on) or something had happened outside of the recording.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests import fixtures
from tests.fakes.n8n import FakeN8n, fake_n8n
from tests.fakes.n8n.world import PASSWORD

TRANSCRIPTS = (
    "transcript_setup.json",
    *(f"transcript_calls{n}.json" for n in ("", "2", "3", "4")),
)
NOT_REPLAYED = {
    f"transcript_calls2.json/{number}/latency {what}": "it measures time, and the fake takes none"
    for number, what in enumerate(("hub-last", "hub-code", "hub-immediate", "hub-async", "GET execution"), 18)
}
_BODIES = {"bad json": "{not json", "text body": "hello"}
_LOGIN = {"emailOrLdapLoginId": "lab@example.com", "password": PASSWORD}
_CREATED_ID = "mAUzPUQZvezzWT48"
_WITHIN_S = 60.0

_RELEASED = {
    ("transcript_calls.json", "27"): "15",
    ("transcript_calls2.json", "1"): "16",
    ("transcript_calls3.json", "7"): "205",
}
"""Executions whose wait was over before the entry."""
_NUMBERS = {("transcript_calls3.json", "1"): 204}
"""The next execution, after those of the measurements."""
_JUST_ENDED = {("transcript_calls2.json", "14"): "21"}
"""Executions that were missing from the list of the entry."""


@dataclass(frozen=True)
class Entry:
    file: str
    number: str
    recorded: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.file}/{self.number}/{self.recorded['label']}"

    @property
    def label(self) -> str:
        return str(self.recorded["label"])

    @property
    def place(self) -> tuple[str, str]:
        return self.file, self.number


@dataclass(frozen=True)
class Reply:
    """What the fake answered: a response, or the value that an entry without a request holds."""

    response: httpx.Response | None = None
    value: Any = None


def entries() -> list[Entry]:
    """Everything that was recorded, in order; nothing where the recordings are not here."""
    if not fixtures.are_here("n8n"):
        return []
    return [
        Entry(file, str(number), recorded)
        for file in TRANSCRIPTS
        for number, recorded in enumerate(fixtures.load_json("n8n", file))
    ]


@dataclass
class Replay:
    n8n: FakeN8n
    client: httpx.AsyncClient
    browser: httpx.AsyncClient
    """Keeps cookies, for `/rest`."""
    api_key: str = ""
    ids: dict[str, str] = field(default_factory=dict)
    """Ids that the fake chose, by those that were recorded."""

    async def send(self, entry: Entry) -> Reply:
        """Replay one entry."""
        self._catch_up(entry)
        match entry.label:
            case "client timeout 1s on 3s workflow":
                return Reply(value=await self._hang_up())
            case "50 concurrent hub-last":
                return Reply(value=await self._fifty())
            case "where the output is":
                return Reply(value=await self._output())
            case "code error fields":
                return Reply(value=await self._error_fields(entry.recorded["workflow"]))
        response = await self._request(entry)
        self._learn(entry, response)
        if self.n8n.time_scale is not None:
            await self._settle()
        return Reply(response)

    def _catch_up(self, entry: Entry) -> None:
        """What had happened before the entry."""
        is_held = "hub-async" in entry.recorded.get("req", "") or "client timeout" in entry.label
        self.n8n.time_scale = None if is_held else 0.0
        if entry.place in _NUMBERS:
            self.n8n.executions.next_number = _NUMBERS[entry.place]
        if entry.place in _JUST_ENDED:
            self.n8n.executions.hide(_JUST_ENDED[entry.place])

    async def pass_time(self, entry: Entry) -> None:
        if entry.place in _RELEASED:
            self.n8n.release(_RELEASED[entry.place])
            await self.n8n.ended(_RELEASED[entry.place])

    async def _settle(self) -> None:
        """Executions that were answered before they ended come to their end, but for those that are held."""
        for execution in self.n8n.executions:
            if execution.is_active and execution.workflow.id != "hubAsync00000001":
                await self.n8n.ended(execution.id)

    async def _request(self, entry: Entry) -> httpx.Response:
        method, _, target = entry.recorded["req"].partition(" ")
        headers = self._headers(entry, target)
        client = self.browser if target.startswith("/rest/") else self.client
        return await client.request(method, renamed(target, self.ids), headers=headers, **_body(entry))

    def _headers(self, entry: Entry, target: str) -> dict[str, str]:
        headers = dict(entry.recorded.get("req_headers") or {})
        headers.pop("X-N8N-API-KEY", None)
        if "X-Idempotency-Key" in headers:
            headers["X-Idempotency-Key"] = "k-9" if entry.label == "async 202" else "k-1"
        if entry.label.startswith("dedupe"):
            headers["X-Idempotency-Key"] = entry.label[-1]
        if target.startswith("/api/v1/") and entry.label != "public api no key":
            headers["X-N8N-API-KEY"] = "wrong" if entry.label == "public api bad key" else self.api_key
        # The browser id came into use after the setup.
        if target.startswith("/rest/") and "setup" not in entry.file and entry.label != "stop without browser-id":
            headers["browser-id"] = "lab"
        return headers

    def _learn(self, entry: Entry, response: httpx.Response) -> None:
        if entry.label == "create api key":
            self.api_key = response.json()["data"]["rawApiKey"]
        if entry.label == "create wf by api":
            self.ids[_CREATED_ID] = response.json()["id"]

    async def _hang_up(self) -> str:
        """Leave a workflow that waits, by a timeout; the name of what the client raises."""
        begun = self.n8n.starts("hubWaitRespond01")
        try:
            await self.client.post("/webhook/hub-wait", json={}, timeout=httpx.Timeout(_WITHIN_S, read=0.05))
        except httpx.HTTPError as error:
            await self.n8n.began("hubWaitRespond01", begun + 1)
            return type(error).__name__
        return "an answer"

    async def _fifty(self) -> dict[str, Any]:
        calls = [self.client.post("/webhook/hub-last", json={"n": n}) for n in range(50)]
        responses = await asyncio.gather(*calls)
        own = sum(response.json()["echo"] == {"n": n} for n, response in enumerate(responses))
        return {"codes": dict(Counter(str(response.status_code) for response in responses)), "own": own}

    async def _output(self) -> Any:
        response = await self._get("/api/v1/executions/15?includeData=true")
        result = response["data"]["resultData"]
        return result["runData"][result["lastNodeExecuted"]][-1]["data"]["main"][0]

    async def _error_fields(self, workflow_id: str) -> dict[str, Any]:
        response = await self._get(f"/api/v1/executions?workflowId={workflow_id}&includeData=true")
        error = response["data"][0]["data"]["resultData"]["error"]
        return {name: error.get(name) for name in ("message", "name", "description", "lineNumber")}

    async def _get(self, target: str) -> Any:
        return (await self.client.get(target, headers={"X-N8N-API-KEY": self.api_key})).json()


def _body(entry: Entry) -> dict[str, Any]:
    if entry.label in _BODIES:
        return {"content": _BODIES[entry.label]}
    body = entry.recorded["body"]
    if entry.label == "login":
        return {"json": _LOGIN}
    if isinstance(body, dict) and body.get("password") == "<lab password>":
        body = body | {"password": PASSWORD}
    return {} if body is None else {"json": body}


def renamed(text: str, ids: dict[str, str]) -> str:
    """What was recorded, with the ids of the fake."""
    for recorded, own in ids.items():
        text = text.replace(recorded, own)
    return text


@dataclass
class Replayed:
    replies: dict[str, Reply | Exception]
    ids: dict[str, str]


async def replay() -> Replayed:
    """Every entry, one after the other, against one fake; what fails is kept in the place of an answer."""
    folder = fixtures.path("n8n", "workflows")
    workflows = [json.loads(path.read_text()) for path in sorted(folder.iterdir())]
    secret = {"hubCred000000001": ("X-Hub-Token", "s3cret-lab")}
    answers: dict[str, Reply | Exception] = {}
    async with (
        fake_n8n(workflows=workflows, active=False, credentials=secret) as n8n,
        httpx.AsyncClient(base_url=n8n.url, timeout=_WITHIN_S) as client,
        httpx.AsyncClient(base_url=n8n.url, timeout=_WITHIN_S) as browser,
    ):
        # It had been published by `n8n publish:workflow` before, which keeps no history.
        n8n.workflows["hubLastNode00001"].active = True
        replaying = Replay(n8n, client, browser)
        for entry in entries():
            if entry.name not in NOT_REPLAYED:
                try:
                    async with asyncio.timeout(_WITHIN_S):
                        await replaying.pass_time(entry)
                        answers[entry.name] = await replaying.send(entry)
                except Exception as error:  # noqa: BLE001 - one entry that fails must not hide the others
                    answers[entry.name] = error
        return Replayed(answers, dict(replaying.ids))
