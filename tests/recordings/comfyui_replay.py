"""Replays a recording against the fake, and reports where the fake differs.

Nothing is timed. Nodes of a long graph are held, and one is let go on only when the next recorded message cannot come
otherwise: when everything that was sent has been heard and nothing more happens of itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import aiohttp
from yarl import URL

from tests.fakes.comfyui import FakeComfy
from tests.fakes.comfyui.png import Picture, encoded, texts_of
from tests.fakes.comfyui.sockets import Socket
from tests.recordings.comfyui_recording import Event, Recording, whole_answer
from tests.recordings.comfyui_rules import differences, normal

COMPARED_HEADERS = frozenset({
    "Content-Type", "Content-Length", "Content-Disposition", "Content-Range", "Etag", "Last-Modified", "Accept-Ranges",
    "X-Content-Type-Options",
})  # fmt: skip
"""What the recorder kept of an answer's headers."""
_UPLOAD = re.compile(r"multipart image=(\S+) subfolder=(\S+) overwrite=(\S+) type=(\S+)")
_BROADCAST = "status"


@dataclass
class Feed:
    """One WebSocket: what came, and what should have come by now.

    Broadcasts of the queue's length are compared apart from the rest: where they fall among the messages of a run
    depends on when the worker thread took the prompt.
    """

    ws: aiohttp.ClientWebSocketResponse
    socket: Socket
    received: int = 0
    came: dict[bool, list[Any]] = field(default_factory=lambda: {False: [], True: []})
    due: dict[bool, list[tuple[int, Any]]] = field(default_factory=lambda: {False: [], True: []})

    def next_due(self) -> Any:
        """The first message that should have come and has not."""
        for kind in (False, True):
            if len(self.came[kind]) < len(self.due[kind]):
                return self.due[kind][len(self.came[kind])][1]
        return None


class Replay:
    """One recording on one fake. `ids`: faked ids by recorded ones, for the next; `differed`: what was found."""

    def __init__(
        self, comfy: FakeComfy, recording: Recording, session: aiohttp.ClientSession, ids: dict[str, str]
    ) -> None:
        self._comfy = comfy
        self._recording = recording
        self._session = session
        self._feeds: dict[str, Feed] = {}
        self._ids = ids
        self._behind: set[str] = set()
        """Prompts that wait for a long one."""
        self._received = 0
        self.differed: list[str] = []

    async def all(self) -> None:
        """Every event, then what the recorder did before the next recording: it emptied the queue."""
        comfy = self._comfy
        comfy.hold(lambda node: self._is_long(node.graph) or node.prompt_id in self._behind)
        steps: dict[str, Callable[[int, Event], Awaitable[None]]] = {
            "http": self._http,
            "ws_open": self._open,
            "ws_send": self._send,
            "ws_recv": self._nothing,
            "ws_closed": self._close,
            "wait_timeout": self._receive_nothing,
            "note": self._note,
        }
        for index, event in enumerate(self._recording.events):
            try:
                await self._receive_until(self._recording.received_before(index))
                await steps[event["kind"]](index, event)
            except TimeoutError:
                waiting = [(name, feed.next_due()) for name, feed in self._feeds.items() if feed.next_due()]
                self._differs(index, f"has waited in vain for {waiting!r:.300}")
                break
        comfy.queue.clear()
        if comfy.queue.running is not None and self._is_long(comfy.queue.running[2]):
            comfy.interrupt()
        comfy.release()
        await comfy.until_idle()

    @staticmethod
    def _is_long(graph: dict[str, Any]) -> bool:
        return any(node["class_type"] == "ImageBlur" for node in graph.values())

    def _differs(self, index: int, difference: str) -> None:
        recording = self._recording
        self.differed.append(f"{recording.version} {recording.name}[{index}] {difference}")

    def _compare(self, index: int, where: str, wanted: Any, got: Any) -> None:
        for found in differences(normal((where,), wanted), normal((where,), self._as_recorded(got))):
            self._differs(index, f"{where} {found}")

    def _as_recorded(self, got: Any) -> Any:
        text = json.dumps(got)
        for recorded, faked in self._ids.items():
            text = text.replace(faked, recorded)
        return json.loads(text)

    def _as_faked(self, value: Any) -> Any:
        text = json.dumps(value)
        for recorded, faked in self._ids.items():
            text = text.replace(recorded, faked)
        return json.loads(text)

    # hearing

    async def _receive_until(self, index: int) -> None:
        """Everything that was recorded before that event, on all sockets."""
        for at in range(self._received, index):
            event = self._recording.events[at]
            if event["kind"] == "ws_recv":
                feed, message = self._feeds[event["ws"]], event["data"]
                feed.due[_is_broadcast(message)].append((at, message))
        self._received = max(self._received, index)
        for feed in self._feeds.values():
            while (wanted := feed.next_due()) is not None:
                await self._receive_one(feed, wanted)

    async def _receive_one(self, feed: Feed, wanted: dict[str, Any]) -> None:
        comfy, socket = self._comfy, feed.socket
        await comfy.until_settled()
        answers_client = wanted["type"] == "feature_flags"
        if socket.sent == feed.received and comfy.pace.held and not answers_client:
            comfy.step()
        held = comfy.pace.held
        await comfy.until(lambda: socket.sent > feed.received or (comfy.pace.held is not held and not answers_client))
        if socket.sent > feed.received:
            await self._receive(feed)

    async def _receive(self, feed: Feed) -> None:
        message = json.loads((await feed.ws.receive(timeout=10)).data)
        feed.received += 1
        kind = _is_broadcast(message)
        feed.came[kind].append(message)
        position = len(feed.came[kind]) - 1
        if position < len(feed.due[kind]):
            index, wanted = feed.due[kind][position]
            self._compare(index, heading(wanted), wanted, message)

    # what was done

    async def _nothing(self, index: int, event: Event) -> None:
        """Messages are heard before what comes after them."""

    async def _open(self, index: int, event: Event) -> None:
        comfy = self._comfy
        if comfy.pace.held is None:
            await comfy.until_idle()
        opened = len(comfy.sockets.opened)
        query = URL(event["url"]).query_string
        ws = await self._session.ws_connect(URL(f"{comfy.url}/ws?{query}", encoded=True))
        await comfy.until_sockets(opened + 1)
        self._feeds[event["ws"]] = Feed(ws, comfy.sockets.opened[-1])

    async def _send(self, index: int, event: Event) -> None:
        await self._feeds[event["ws"]].ws.send_json(event["data"])

    async def _close(self, index: int, event: Event) -> None:
        """By the client, unless the server was killed; nothing unrecorded may have come while nothing ran."""
        feed = self._feeds[event["ws"]]
        wanted = [message for _, message in feed.due[True]]
        self._compare(index, "broadcast", _lengths(wanted), _lengths(feed.came[True][: len(wanted)]))
        if self._comfy.lives and self._comfy.queue.remaining == 0 and not feed.socket.ended:
            await self._comfy.until_settled()
            if feed.received != feed.socket.sent:
                self._differs(index, f"{feed.socket.sent - feed.received} messages more than recorded")
        await feed.ws.close()
        await self._comfy.until(lambda: feed.socket.ended)
        del self._feeds[event["ws"]]

    async def _receive_nothing(self, index: int, event: Event) -> None:
        """The recorder waited in vain while the run went on."""
        feed = self._feeds[event["ws"]]
        for _ in range(3):
            self._comfy.step()
            await self._comfy.until_settled()
        if feed.received != feed.socket.sent:
            self._differs(index, f"heard {feed.socket.sent - feed.received} messages where none was recorded")

    async def _note(self, index: int, event: Event) -> None:
        """Some say what was done to the server, some what was seen; the rest are headings."""
        text = event["text"]
        if text.startswith("server killed"):
            await self._comfy.kill()
        elif text.startswith("HTTP while down"):
            await self._refused(index)
        elif text.startswith("server restarted"):
            await self._comfy.start()
        elif text.startswith("output file deleted"):
            self._comfy.delete_outputs()
        elif text.startswith("PNG text chunks"):
            wanted = json.loads(text.removeprefix("PNG text chunks: "))
            self._compare(index, "PNG", wanted, texts_of(self._comfy.folders.outputs()[-1].read_bytes()))

    async def _refused(self, index: int) -> None:
        try:
            await self._session.get(f"{self._comfy.url}/queue")
        except aiohttp.ClientConnectorError:
            return
        self._differs(index, "the port answers while the server is down")

    async def _http(self, index: int, event: Event) -> None:
        path = self._as_faked(event["path"])
        target = URL(self._comfy.url + path)
        behind = self._comfy.pace.held is not None
        async with self._session.request(event["method"], target, **self._request(index, event)) as answer:
            body = await answer.read()
            await self._compare_answer(index, event, answer, body)
        if event["path"] == "/prompt" and event["method"] == "POST" and answer.status == 200:
            faked = json.loads(body)["prompt_id"]
            if behind:
                self._behind.add(faked)

    def _request(self, index: int, event: Event) -> dict[str, Any]:
        note, body = event["note"] or "", event["body"]
        if upload := _UPLOAD.match(note):
            return {"data": _form(*upload.groups())}
        if note == "range":
            return {"headers": {"Range": "bytes=0-9"}}
        if note.startswith("foreign Origin"):
            return {"headers": {"Origin": "http://evil.example"}}
        if isinstance(body, dict) and "_raw" in body:
            return {"data": body["_raw"].encode() or None}
        if body is None:
            return {}
        return {"json": self._as_faked(self._recording.body(index) if event["path"] == "/prompt" else body)}

    async def _compare_answer(self, index: int, event: Event, answer: aiohttp.ClientResponse, body: bytes) -> None:
        wanted = whole_answer(event)
        if answer.content_type == "application/json" and body:
            got = json.loads(body)
        elif isinstance(wanted, dict) and "_binary_sha256" in wanted:
            got = {"_binary_sha256": hashlib.sha256(body).hexdigest(), "_len": len(body)}
        else:
            got = {"_raw": body.decode()}
        if event["path"] == "/prompt" and "prompt_id" in wanted and wanted["prompt_id"] != got.get("prompt_id"):
            self._ids[wanted["prompt_id"]] = got["prompt_id"]
        headers = {name: value for name, value in answer.headers.items() if name in COMPARED_HEADERS}
        where = f"{event['method']} {event['path']}"
        recorded = {"status": event["status"], "headers": event["headers"], "response": wanted}
        self._compare(index, where, recorded, {"status": answer.status, "headers": headers, "response": got})


def heading(message: dict[str, Any]) -> str:
    """What the rules know a message by."""
    return "ws broadcast" if _is_broadcast(message) else f"ws {message['type']}"


def _lengths(messages: list[dict[str, Any]]) -> list[int]:
    """The queue's lengths as they were broadcast, each as long as it lasted."""
    lengths = (message["data"]["status"]["exec_info"]["queue_remaining"] for message in messages)
    return [length for length, _ in groupby(lengths)]


def _is_broadcast(message: dict[str, Any]) -> bool:
    return message["type"] == _BROADCAST and "sid" not in message["data"]


def _form(image: str, subfolder: str, overwrite: str, kind: str) -> aiohttp.FormData:
    """An upload as the recorder made it; None: the field was not sent."""
    form = aiohttp.FormData()
    form.add_field("image", encoded(Picture(64, 48, 0x123456)), filename=image, content_type="image/png")
    for name, value in {"subfolder": subfolder, "overwrite": overwrite, "type": kind}.items():
        if value != "None":
            form.add_field(name, value)
    return form
