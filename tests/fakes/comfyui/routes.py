"""The HTTP routes that submit, look up and cancel."""

from __future__ import annotations

import copy
import json
import uuid
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.fakes.comfyui import jobs
from tests.fakes.comfyui.execution import Run
from tests.fakes.comfyui.record import SubmittedPrompt, digest_of
from tests.fakes.comfyui.validation import Validation, reason

if TYPE_CHECKING:
    from tests.fakes.comfyui.server import FakeComfy

_BAD_ID = (
    "prompt_id must be a UUID string in canonical lowercase hyphenated form; omit it to let the server generate one"
)

_SECRET = frozenset({"auth_token_comfy_org", "api_key_comfy_org"})


def is_canonical(value: Any) -> bool:
    """Whether it is a UUID as the newer version wants them."""
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False


class Routes:
    """Everything of a server but files."""

    def __init__(self, comfy: FakeComfy) -> None:
        self._comfy = comfy

    def add_to(self, app: web.Application) -> None:
        """Each route also below /api, as the real one has them; jobs only there."""
        gets = {
            "/ws": self.socket,
            "/system_stats": self.system_stats,
            "/features": self.features,
            "/models": self.models,
            "/embeddings": self.embeddings,
            "/object_info": self.object_info,
            "/object_info/{name}": self.object_info,
            "/prompt": self.prompt_state,
            "/queue": self.queue,
            "/history": self.histories,
            "/history/{prompt_id}": self.history,
        }
        posts = {
            "/prompt": self.submit,
            "/queue": self.change_queue,
            "/history": self.change_history,
            "/interrupt": self.interrupt,
            "/free": self.nothing,
        }
        for prefix in ("", "/api"):
            app.add_routes([web.get(prefix + path, function) for path, function in gets.items()])
            app.add_routes([web.post(prefix + path, function) for path, function in posts.items()])
        if self._comfy.version.has_jobs:
            app.router.add_get("/api/jobs", self.all_jobs)
            app.router.add_post("/api/jobs/cancel", self.cancel_jobs)
            app.router.add_get("/api/jobs/{prompt_id}", self.job)
            app.router.add_post("/api/jobs/{prompt_id}/cancel", self.cancel_job)

    # what the server is

    async def socket(self, request: web.Request) -> web.StreamResponse:
        comfy = self._comfy
        now = (comfy.state.client_id, comfy.state.last_node)
        return (await comfy.sockets.serve(request, comfy.queue.status, now)).ws

    async def system_stats(self, request: web.Request) -> web.Response:
        return web.json_response(self._comfy.version.system_stats(self._comfy.port))

    async def features(self, request: web.Request) -> web.Response:
        return web.json_response(self._comfy.features)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response(self._comfy.version.model_folders)

    async def embeddings(self, request: web.Request) -> web.Response:
        return web.json_response([])

    async def nothing(self, request: web.Request) -> web.Response:
        return web.Response()

    async def object_info(self, request: web.Request) -> web.Response:
        """A class that there is not is an empty object."""
        comfy, wanted = self._comfy, request.match_info.get("name")
        infos = {
            name: kind.info(comfy.version.is_new) for name, kind in comfy.classes.items() if wanted in {None, name}
        }
        if "LoadImage" in infos:
            infos["LoadImage"] = copy.deepcopy(infos["LoadImage"])
            infos["LoadImage"]["input"]["required"]["image"][0] = comfy.folders.uploads()
        return web.json_response(infos)

    # submitting

    async def submit(self, request: web.Request) -> web.Response:
        """Anything that is not even a prompt is an exception of the server's, and so a bare 500."""
        comfy, body = self._comfy, await request.json()
        number = comfy.next_number(body)
        if "prompt" not in body:
            refused = reason("no_prompt", "No prompt provided", "No prompt provided")
            return web.json_response({"error": refused, "node_errors": {}}, status=400)
        given = body.get("prompt_id") if comfy.version.checks_prompt_ids else str(body.get("prompt_id", uuid.uuid4()))
        if comfy.version.checks_prompt_ids and given is not None and not is_canonical(given):
            refused = reason("invalid_prompt_id", "prompt_id must be a valid UUID", _BAD_ID)
            return web.json_response({"error": refused, "node_errors": {}}, status=400)
        prompt_id, graph = given or str(uuid.uuid4()), body["prompt"]
        extra = dict(body.get("extra_data") or {}) | ({"client_id": body["client_id"]} if "client_id" in body else {})
        digest = digest_of(graph) if isinstance(graph, dict) else ""
        run = Run(comfy.state, (number, prompt_id, {}, {}, []))
        verdict = Validation(graph, comfy.classes, comfy.version, run).check(body.get("partial_execution_targets"))
        if verdict.error is not None:
            return web.json_response({"error": verdict.error, "node_errors": verdict.node_errors}, status=400)
        if comfy.version.hides_keys:
            extra = {key: value for key, value in extra.items() if key not in _SECRET}
        if comfy.version.stamps_create_time:
            extra["create_time"] = comfy.next_create_time_ms()
        comfy.submitted.append(SubmittedPrompt(prompt_id, digest, number, extra.get("client_id"), graph))
        comfy.queue.put((number, prompt_id, graph, extra, verdict.outputs))
        accepted = {"prompt_id": prompt_id, "number": number, "node_errors": verdict.node_errors}
        return web.json_response(accepted)

    # looking up

    async def prompt_state(self, request: web.Request) -> web.Response:
        return web.json_response(self._comfy.queue.status)

    async def queue(self, request: web.Request) -> web.Response:
        queue = self._comfy.queue
        running = [queue.running] if queue.running else []
        return web.json_response({"queue_running": running, "queue_pending": queue.pending})

    async def histories(self, request: web.Request) -> web.Response:
        most = request.query.get("max_items")
        offset = int(request.query.get("offset", -1))
        return web.json_response(self._comfy.queue.page(int(most) if most is not None else None, offset))

    async def history(self, request: web.Request) -> web.Response:
        """`{}` for what is pending, running or unknown: the answer is the same."""
        prompt_id = request.match_info["prompt_id"]
        entry = self._comfy.queue.history.get(prompt_id)
        return web.json_response({} if entry is None else {prompt_id: entry})

    async def all_jobs(self, request: web.Request) -> web.Response:
        statuses = request.query["status"].split(",") if "status" in request.query else jobs.STATUSES
        if bad := [status for status in statuses if status not in jobs.STATUSES]:
            message = f"Invalid status value(s): {', '.join(bad)}. Valid values: {', '.join(jobs.STATUSES)}"
            return web.json_response({"error": message}, status=400)
        limit = int(request.query["limit"]) if "limit" in request.query else None
        offset = int(request.query.get("offset", 0))
        return web.json_response(jobs.listed(self._comfy.queue, statuses, offset, limit))

    async def job(self, request: web.Request) -> web.Response:
        found = jobs.one(self._comfy.queue, request.match_info["prompt_id"])
        return web.json_response(found) if found else web.json_response({"error": "Job not found"}, status=404)

    # cancelling

    async def change_queue(self, request: web.Request) -> web.Response:
        """Answers 200 whatever it did; the heap bug is a bare 500."""
        body = await request.json()
        if body.get("clear"):
            self._comfy.queue.clear()
        for prompt_id in body.get("delete", []):
            self._comfy.queue.delete(prompt_id)
        return web.Response()

    async def change_history(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("clear"):
            self._comfy.queue.history.clear()
        for prompt_id in body.get("delete", []):
            self._comfy.queue.history.pop(prompt_id, None)
        return web.Response()

    async def interrupt(self, request: web.Request) -> web.Response:
        """Of one prompt if it is the one that runs; without a prompt_id of whatever runs. Always 200."""
        try:
            body = await request.json()
        except json.JSONDecodeError:
            body = {}
        running = self._comfy.queue.running
        if "prompt_id" not in body or (running is not None and running[1] == body["prompt_id"]):
            self._comfy.state.interrupted = True
        return web.Response()

    async def cancel_job(self, request: web.Request) -> web.Response:
        return web.json_response({"cancelled": self._cancel(request.match_info["prompt_id"])})

    async def cancel_jobs(self, request: web.Request) -> web.Response:
        ids = (await request.json()).get("job_ids")
        if not isinstance(ids, list):
            return web.json_response({"error": "job_ids must be a list"}, status=400)
        if bad := [each for each in ids if not is_canonical(each)]:
            refusal = {"error": "job_ids contains invalid id(s)", "invalid_ids": bad}
            return web.json_response(refusal, status=400)
        cancelled = [self._cancel(each) for each in ids]
        # recorded: one more status broadcast than there were deletions
        self._comfy.send_status()
        return web.json_response({"cancelled": any(cancelled)})

    def _cancel(self, prompt_id: str) -> bool:
        """Whether there was something to cancel: False for what has ended or is unknown."""
        running = self._comfy.queue.running
        if running is not None and running[1] == prompt_id:
            self._comfy.state.interrupted = True
            return True
        return self._comfy.queue.delete(prompt_id)
