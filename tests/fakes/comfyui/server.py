"""The fake as a server with a life: started, killed, and started again on the same port with nothing in memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fakes.comfyui.classes import image_classes
from tests.fakes.comfyui.diffusion import diffusion_classes
from tests.fakes.comfyui.execution import Run, ServerState, now_ms
from tests.fakes.comfyui.faults import Faults, How, Op
from tests.fakes.comfyui.file_routes import FileRoutes
from tests.fakes.comfyui.files import Folders
from tests.fakes.comfyui.middlewares import faulty, guarded, own_origin, recording
from tests.fakes.comfyui.node_class import BrokenNode, NodeClass
from tests.fakes.comfyui.pace import Holds, Pace, RunningNode
from tests.fakes.comfyui.pulse import ChangeSignal
from tests.fakes.comfyui.record import RecordedRequest, SubmittedPrompt
from tests.fakes.comfyui.routes import Routes
from tests.fakes.comfyui.sockets import Sockets
from tests.fakes.comfyui.versions import VERSIONS
from tests.fakes.comfyui.work_queue import WorkQueue
from tests.free_port import free_port

Shown = dict[str, list[Any]]


class FakeComfy:
    """One ComfyUI. What outlives a restart: port, files, classes, faults, pace, and what was asked and submitted."""

    def __init__(self, root: Path, version: str, *, history_cap: int, max_upload_bytes: int) -> None:
        self.version = VERSIONS[version]
        self.features = self.version.features | {"max_upload_size": max_upload_bytes}
        self.pulse = ChangeSignal()
        self.pace = Pace(self.pulse)
        self.faults = Faults()
        self.folders = Folders(root, shows_common_path=not self.version.is_new)
        self.classes: dict[str, NodeClass] = {kind.name: kind for kind in [*diffusion_classes(), *image_classes()]}
        self.asked: list[RecordedRequest] = []
        self.users: set[str] = set()
        """Values of Authorization that are let in; empty: everybody is."""
        self.submitted: list[SubmittedPrompt] = []
        self.port = 0
        self.lives = 0
        """How often it has been started."""
        self.worker_is_dead = False
        """The heap bug has ended the worker: nothing runs any more until a restart."""
        self._history_cap = history_cap
        self._max_upload_bytes = max_upload_bytes
        self._failures: list[tuple[str, str, str]] = []
        self._claims: deque[tuple[str, Shown]] = deque()
        self._history_is_held = False
        self._reserved: socket.socket | None = None
        self._runner: web.AppRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._forget()

    def _forget(self) -> None:
        self.number = 0
        """The next prompt's."""
        self._create_time_ms = 0
        self.worker_is_dead = False
        self.sockets = Sockets(self.pulse, self.features)
        self.queue = WorkQueue(self.pulse, self.send_status, self._history_cap)
        self.state = ServerState(
            version=self.version,
            classes=self.classes,
            folders=self.folders,
            sockets=self.sockets,
            pace=self.pace,
            break_node=self._break_node,
            shown_instead=self._shown_instead,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # its life

    async def start(self) -> None:
        """Listen, on the same port as before, with empty memory."""
        self._forget()
        self.folders.clear_temp()
        app = web.Application(
            client_max_size=self._max_upload_bytes,
            middlewares=[recording(self), guarded(self), own_origin, faulty(self)],
        )
        Routes(self).add_to(app)
        FileRoutes(self).add_to(app)
        # the pages of the real one: an unknown GET is 404, any other method there is 405
        app.router.add_static("/", self.folders.root / "web")
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        listening = self._reserved or _bound(free_port())
        self._reserved = None
        self.port = listening.getsockname()[1]
        await web.SockSite(self._runner, listening).start()
        self._tasks = [asyncio.create_task(self.sockets.publish()), asyncio.create_task(self._work())]
        self.lives += 1
        self.pulse.beat()

    async def kill(self) -> None:
        """As SIGKILL: every connection is cut, memory is gone, and the port refuses connections."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for site in list(runner.sites):
            await site.stop()
        # bound but not listening: nobody else gets the port, and who connects is refused
        self._reserved = _bound(self.port)
        for connection in list(runner.server.connections) if runner.server else []:
            if connection.transport is not None:
                connection.transport.abort()
        self.faults.let_go()
        await runner.cleanup()
        self._forget()
        self.pulse.beat()

    async def restart(self) -> None:
        """Kill and start: history, queue, jobs and cache are empty, files are still there."""
        await self.kill()
        await self.start()

    async def close(self) -> None:
        await self.kill()
        if self._reserved is not None:
            self._reserved.close()

    async def _work(self) -> None:
        while True:
            try:
                item = await self.queue.take()
            except TypeError:
                self.worker_is_dead = True
                return
            entry = await Run(self.state, item).finish()
            await self.pulse.until(lambda: not self._history_is_held, timeout_s=None)
            self.queue.done(item, entry)
            client_id = item[3].get("client_id")
            if client_id is not None:
                self.sockets.send("executing", {"node": None, "prompt_id": item[1]}, client_id)
            self.pulse.beat()

    def send_status(self) -> None:
        """The broadcast after every change of the queue."""
        self.sockets.send("status", {"status": self.queue.status})

    def next_number(self, body: dict[str, Any]) -> float:
        """The prompt's number; refused prompts use theirs up, too."""
        if "number" in body:
            return float(body["number"])
        number = -self.number if body.get("front") else self.number
        self.number += 1
        return number

    def next_create_time_ms(self) -> int:
        """Never the same twice: the real server takes longer than a millisecond for a prompt, the fake does not, and
        neither the order of jobs nor the comparison in the heap may hang on how fast this machine is."""
        self._create_time_ms = max(now_ms(), self._create_time_ms + 1)
        return self._create_time_ms

    # its pace

    def hold(self, which: str | Holds | None = None) -> None:
        """Hold nodes of a class, those a function picks, or every node, inside their execution."""
        self.pace.hold(which)

    def step(self, nodes: int = 1) -> None:
        """Let so many held nodes go on."""
        self.pace.step(nodes)

    def release(self) -> None:
        """Hold nothing any more."""
        self.pace.release()

    def hold_history(self) -> None:
        """The race: after `execution_success` the run is not in the history before `release_history()`."""
        self._history_is_held = True

    def release_history(self) -> None:
        self._history_is_held = False
        self.pulse.beat()

    # waiting for it

    async def until_held(self, class_type: str | None = None) -> RunningNode:
        """Until a node (of that class) is held."""
        await self.pulse.until(lambda: _is(self.pace.held, class_type))
        assert self.pace.held is not None
        return self.pace.held

    async def until_idle(self) -> None:
        """Until nothing runs or waits, and every message has been sent."""
        await self.pulse.until(lambda: self.queue.remaining == 0 and self.sockets.all_sent)

    async def until_settled(self) -> None:
        """Until nothing happens of itself any more: idle, or held; and every message has been sent."""
        await self.pulse.until(lambda: (self.queue.remaining == 0 or self._waits) and self.sockets.all_sent)

    @property
    def _waits(self) -> bool:
        return self.pace.held is not None or self._history_is_held or self.worker_is_dead

    async def until_submitted(self, count: int = 1) -> SubmittedPrompt:
        """Until so many prompts have gone into the queue, over all its lives."""
        await self.pulse.until(lambda: len(self.submitted) >= count)
        return self.submitted[count - 1]

    async def until_asked(self, op: Op, count: int = 1) -> None:
        """Until so many requests of a kind have arrived."""
        await self.pulse.until(lambda: self.count(op) >= count)

    async def until_sockets(self, count: int = 1) -> None:
        """Until so many WebSockets have been opened in this life."""
        await self.pulse.until(lambda: len(self.sockets.opened) >= count)

    async def until(self, true: Callable[[], bool]) -> None:
        """Until something about it is true."""
        await self.pulse.until(true)

    def count(self, op: Op) -> int:
        """Requests of a kind so far."""
        return sum(asked.op is op for asked in self.asked)

    def submissions(self) -> Counter[str]:
        """How often each prompt_id has gone into the queue: never more than once, if the client is right."""
        return Counter(each.prompt_id for each in self.submitted)

    # what goes wrong

    def fault(self, op: Op, how: How, times: int = 1) -> None:
        """The next `times` requests of this kind go wrong so (-1: all)."""
        self.faults.add(op, how, times)

    def fail(self, class_type: str, message: str, kind: str = "RuntimeError", times: int = 1) -> None:
        """The next nodes of this class fail with these words."""
        self._failures += [(class_type, message, kind)] * times

    def _break_node(self, class_type: str) -> None:
        for failure in self._failures:
            if failure[0] == class_type:
                self._failures.remove(failure)
                raise BrokenNode(failure[2], failure[1])

    def claim(self, class_type: str, shown: Shown) -> None:
        """The next node of this class is said to show this, whatever it wrote."""
        self._claims.append((class_type, shown))

    def _shown_instead(self, class_type: str, shown: Shown) -> Shown:
        for claim in self._claims:
            if claim[0] == class_type:
                self._claims.remove(claim)
                return claim[1]
        return shown

    def lose(self, prompt_id: str) -> None:
        """Somebody else deletes it: from the history, and if it is pending from the queue."""
        self.queue.history.pop(prompt_id, None)
        self.queue.delete(prompt_id)

    def clear_history(self) -> None:
        self.queue.history.clear()

    def interrupt(self) -> None:
        """Somebody else interrupts whatever runs."""
        self.state.interrupted = True

    def delete_outputs(self) -> None:
        """The files are gone; history and cache still name them."""
        for path in self.folders.outputs():
            path.unlink()

    def replace_outputs(self, data: bytes) -> None:
        """The files hold other bytes."""
        for path in self.folders.outputs():
            path.write_bytes(data)

    def grow_outputs(self, size_bytes: int) -> None:
        """The files are as big as that (sparse)."""
        for path in self.folders.outputs():
            with path.open("r+b") as file:
                file.truncate(size_bytes)

    def remove_class(self, name: str) -> None:
        del self.classes[name]

    def change_input(self, class_type: str, name: str, spec: list[Any]) -> None:
        """Another type, other choices or other bounds for a required input."""
        self.classes[class_type].required[name] = spec

    def drop_sockets(self) -> None:
        """Cut every WebSocket; new ones are served."""
        self.sockets.drop_all()

    def mute_sockets(self) -> None:
        """Every WebSocket, new ones too, stays open and silent for ever."""
        self.sockets.muted = True

    @property
    def previews(self) -> bool:
        """Whether samplers send binary preview frames."""
        return self.state.previews

    @previews.setter
    def previews(self, wanted: bool) -> None:
        self.state.previews = wanted


def _is(held: RunningNode | None, class_type: str | None) -> bool:
    return held is not None and class_type in {None, held.class_type}


def _bound(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setblocking(False)
    bound.bind(("127.0.0.1", port))
    return bound


@asynccontextmanager
async def fake_comfyui(
    version: str = "0.33.0", *, history_cap: int = 10_000, max_upload_bytes: int = 104_857_600
) -> AsyncIterator[FakeComfy]:
    """A running fake on loopback, on a free port, with its own folders."""
    with tempfile.TemporaryDirectory(prefix="comfyui-") as folder:
        comfy = FakeComfy(Path(folder), version, history_cap=history_cap, max_upload_bytes=max_upload_bytes)
        await comfy.start()
        try:
            yield comfy
        finally:
            with contextlib.suppress(TimeoutError):
                await comfy.close()
