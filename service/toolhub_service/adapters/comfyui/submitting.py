"""Sends a prompt to one server, once, after the artifacts that it reads; and finds one that may have been sent.

When something fails before the graph is sent (no connection, an upload), it goes to the next server. Once the graph may
have arrived, only an answer counts, or the jobs, queue and history of the server that the mark has named since before.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from hashlib import sha256
from itertools import count
from typing import Any, Final, NamedTuple, cast

from msgspec.structs import replace

from toolhub_service.adapters.comfyui import failures
from toolhub_service.adapters.comfyui.backends import Backend, Backends, ServerKind
from toolhub_service.adapters.comfyui.client import ComfyClient, NoReply, Reply
from toolhub_service.adapters.comfyui.files.media_types import SNIFFED_BYTES, extension_of, media_type_of
from toolhub_service.adapters.comfyui.files.served_file import is_file_name, is_folder
from toolhub_service.adapters.comfyui.states import ID, PromptState, graph_of, whole_number
from toolhub_service.adapters.comfyui.workflow.bind_arguments import Upload, bind_graph, required_uploads
from toolhub_service.adapters.comfyui.workflow.template import SEED_MAX, RunnableTemplate, Template
from toolhub_service.domain.artifact import Artifact, ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import RemoteUnclear
from toolhub_service.domain.errors.http_status import Processing
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.json import JsonValue
from toolhub_service.guards.secrets import Redact
from toolhub_service.schema.canonical_json import NotJson, digest

# How long a start waits for the WebSocket that receives its events.
_SOCKET_TIMEOUT_S: Final = 2.0
NODE_ERRORS: Final = "node_errors"
"""Detail of a mark: the nodes that the server would not run in a graph that it accepted all the same."""
_NODE_ERRORS_MAX_CHARS: Final = 8_000
_LOOKS: Final = 2
_TENANT_CHARS: Final = 16
_TOO_MANY_REQUESTS: Final = 429
_SENT_TO: Final = "sent_to"
WITNESS: Final = "_its_server_knew"
"""Detail of a mark, not for evidence: a prompt, perhaps another caller's, that the server knew when this one
was sent."""
_MAY_HAVE_FORGOTTEN: Final = "Its server does not know it. It may have restarted since, and lost its history."

KeepMark = Callable[[str, RemoteMark], Awaitable[None]]
"""As `RunningJobs.keep_mark`."""


class _Sent(NamedTuple):
    """Where a prompt was sent, or may have been."""

    backend: str
    # A restarted server has forgotten its prompts and does not report when it started: while it still knows an earlier
    # prompt, it was not restarted.
    witness: str
    """A prompt that its server knew before; empty: none."""


class Submitter:
    """Sends the prompts of one source, and finds those that may have been sent."""

    def __init__(self, backends: Backends, artifacts: ArtifactService, keep_mark: KeepMark, redact: Redact) -> None:
        self._backends = backends
        self._artifacts = artifacts
        self._keep_mark = keep_mark
        self._redact = redact
        self._sent: dict[str, _Sent] = {}
        self._broken_off: set[str] = set()
        """Keys whose server was or seemed unavailable while they were looked up, so that it may have forgotten them."""

    def forget(self, key: str) -> None:
        self._sent.pop(key, None)
        self._broken_off.discard(key)

    async def start(self, call: GrantedCall, mark: RemoteMark, runnable: RunnableTemplate) -> RemoteMark:
        """As `RemoteJob.start`."""
        tried: dict[str, str] = {}
        while True:
            backend = await self._backends.choose(runnable.backends - tried.keys())
            if backend is None:
                raise failures.no_server(call, tried)
            try:
                with backend.sending():
                    return await self._submit(backend.for_caller(call), runnable.template, call, mark)
            except NoReply as unreached:
                tried[backend.name] = unreached.reason
                backend.note_failure()

    async def find(self, call: GrantedCall, mark: RemoteMark, template: Template | None) -> RemoteMark | None:
        """As `RemoteJob.find`."""
        sent = self._sent.get(mark.key)
        if sent is None and mark.details.get(_SENT_TO):
            sent = _Sent(mark.details[_SENT_TO], mark.details.get(WITNESS, ""))
        silent: RemoteUnclear | None = None
        for candidate in self._candidates(sent):
            backend = candidate.for_caller(call)
            try:
                if await _is_known(backend, mark.key):
                    return await _mark_of_prompt(backend, mark, template)
                if sent is not None and not (call.safe_to_repeat or await self._has_run_since(backend, mark.key, sent)):
                    raise RemoteUnclear(_MAY_HAVE_FORGOTTEN)
            except NoReply as unreached:
                silent = RemoteUnclear(failures.unclear(backend.name, unreached))
                if unreached.is_broken:
                    self._broken_off.add(mark.key)
        if silent is not None:
            raise silent
        return None

    def _candidates(self, sent: _Sent | None) -> list[Backend]:
        """Return the servers that may have it. Raises RemoteUnclear."""
        if sent is None:
            return list(self._backends)
        backend = self._backends.get(sent.backend)
        if backend is None:
            raise RemoteUnclear(f"The server {sent.backend}, to which it was sent, is no longer configured.")
        return [backend]

    async def _has_run_since(self, backend: Backend, key: str, sent: _Sent) -> bool:
        """Return whether a server that does not know the key has certainly not been restarted since. Raises NoReply."""
        if sent.witness:
            return (await backend.read_status(sent.witness)).state is not PromptState.UNKNOWN
        return key in self._sent and key not in self._broken_off

    async def _submit(self, backend: Backend, template: Template, call: GrantedCall, mark: RemoteMark) -> RemoteMark:
        """Return the mark of an accepted prompt.

        Raises NoReply when it certainly was not sent, ToolFailure when it was refused, RemoteUnclear otherwise.
        """
        kind = await backend.kind()
        uploads = {
            upload.artifact_id: await self._upload(backend.client, call, upload, kind.upload_max_bytes)
            for upload in required_uploads(template, call.args)
        }
        names = {"tenant": _tenant_of(call), "job_id": call.call.job_id or mark.key}
        graph = bind_graph(template, call.args, uploads=uploads, seeds=_seeds_of_job(mark.key), names=names)
        client_id = await backend.events.ready(_SOCKET_TIMEOUT_S)
        # Stored before sending, so that a later run knows which server to ask.
        sent = _Sent(backend.name, backend.witness)
        noted = {**mark.details, _SENT_TO: sent.backend, WITNESS: sent.witness}
        await self._keep_mark(call.call.job_id, replace(mark, details=noted))
        self._sent[mark.key] = sent
        # Without `number`: two waiting prompts with the same id and number break the queue of a server (0.33 answers
        # every removal with 500). Without `client_id` nobody receives the prompt's events, which are not kept for
        # later.
        body = {"prompt": graph.graph, "prompt_id": mark.key, **({"client_id": client_id} if client_id else {})}
        try:
            reply = await backend.client.post("/prompt", body)
        except NoReply as broken:
            if not broken.was_sent:
                raise
            raise RemoteUnclear(failures.unclear(backend.name, broken)) from broken
        prompt_id = self._prompt_id(reply, backend, template, call)
        number = whole_number(reply.fields.get("number"))
        details = {
            **_facts_of(template, kind),
            "graph_sha256": graph.sha256,
            "seeds": _json(graph.seeds),
            "prefixes": _json(graph.prefixes),
            "uploads": _json(uploads),
            "client_id": client_id,
            WITNESS: sent.witness,
            "number": "" if number is None else str(number),
        }
        if reply.fields.get("node_errors"):
            details[NODE_ERRORS] = _cut(reply.fields["node_errors"], self._redact)
        return _mark_of_accepted(mark, backend, prompt_id, details)

    def _prompt_id(self, reply: Reply, backend: Backend, template: Template, call: GrantedCall) -> str:
        """Return the id of an accepted prompt. Raises NoReply when a proxy did not reach the server, ToolFailure when
        the prompt was refused, RemoteUnclear otherwise."""
        processing, is_busy = reply.processing, reply.status == _TOO_MANY_REQUESTS
        if processing is Processing.NOT_REACHED or (processing is Processing.REFUSED and not is_busy):
            raise NoReply(f"it answered {reply.status}", was_sent=False, retry_after_s=reply.retry_after_s)
        # A server may answer 500 whether or not it accepted the graph: the prompt is looked up, not sent again.
        if is_busy or (300 <= reply.status < 500 and processing is Processing.ANSWERED):
            raise failures.start_refusal(call, template, reply, self._redact)
        prompt_id = reply.fields.get("prompt_id")
        if reply.status != 200 or not isinstance(prompt_id, str) or ID.fullmatch(prompt_id) is None:
            raise RemoteUnclear(
                f"The server {backend.name} answered {reply.status}, so the state of the job is unknown."
            )
        return prompt_id

    async def _upload(self, client: ComfyClient, call: GrantedCall, upload: Upload, max_bytes: int) -> str:
        """Return the name by which a node loads the artifact. `max_bytes`: the server's limit; 0: not reported.

        Raises ToolFailure when the artifact is not the caller's or is unsuitable, NoReply.
        """
        artifact = await self._artifacts.open(call.call.principal.id, upload.artifact_id)
        if max_bytes and artifact.size_bytes > max_bytes:
            why = f"it has {artifact.size_bytes:,} bytes, and the server takes {max_bytes:,}"
            raise failures.upload_refusal(call, upload.pointer, why)
        async with aclosing(cast("Any", self._artifacts.read(artifact, 0, SNIFFED_BYTES))) as chunks:
            extension = extension_of(media_type_of(b"".join([chunk async for chunk in chunks])))
        if not extension:
            why = "it is not an image, audio or video file that a node can load"
            raise failures.upload_refusal(call, upload.pointer, why)
        # If a name is taken, the server stores other bytes under another name: so the name is made from the content, an
        # upload may be repeated, and the name in the answer is used.
        reply = await self._post_multipart(client, artifact, f"{artifact.sha256}.{extension}", _tenant_of(call))
        # 413 above the server's own limit, which it reports under /features; 400 for a folder outside its own.
        if reply.status in (400, 413):
            raise failures.upload_refusal(call, upload.pointer, f"the server does not accept it ({reply.status})")
        name, folder = reply.fields.get("name"), reply.fields.get("subfolder", "")
        if reply.status != 200 or not isinstance(name, str) or not isinstance(folder, str):
            raise NoReply(f"it answered {reply.status} to an upload")
        if not is_file_name(name) or not is_folder(folder):
            raise NoReply("it stored the upload under an unsafe name")
        return f"{folder}/{name}" if folder else name

    async def _post_multipart(self, client: ComfyClient, artifact: Artifact, name: str, tenant: str) -> Reply:
        # The boundary is random: bytes that contain a known one would end their part and add fields of their own, such
        # as another folder.
        boundary = f"toolhub-{secrets.token_hex(16)}"
        part = f"--{boundary}\r\nContent-Disposition: form-data; name="
        head = f'{part}"subfolder"\r\n\r\ntoolhub/{tenant}\r\n{part}"type"\r\n\r\ninput\r\n'
        head += f'{part}"image"; filename="{name}"\r\nContent-Type: application/octet-stream\r\n\r\n'
        tail = f"\r\n--{boundary}--\r\n"
        headers = {
            "content-type": f"multipart/form-data; boundary={boundary}",
            "content-length": str(len(head) + artifact.size_bytes + len(tail)),
        }

        async def body() -> AsyncIterator[bytes]:
            yield head.encode()
            async for chunk in self._artifacts.read(artifact):
                yield chunk
            yield tail.encode()

        return await client.post_stream("/upload/image", body, headers)


def _tenant_of(call: GrantedCall) -> str:
    """Return a pseudonym of the caller for a server: it does not identify the caller, and two never share a folder."""
    return sha256(f"toolhub tenant {call.call.principal.id}".encode()).hexdigest()[:_TENANT_CHARS]


def _mark_of_accepted(mark: RemoteMark, backend: Backend, prompt_id: str, details: Mapping[str, str]) -> RemoteMark:
    known = {name: value for name, value in details.items() if value}
    return replace(mark, remote_id=prompt_id, accepted=True, endpoint=backend.name, details={**mark.details, **known})


async def _is_known(backend: Backend, prompt_id: str) -> bool:
    # Twice, because a prompt moves between the lists while they are read.
    for _ in range(_LOOKS):
        if (await backend.read_status(prompt_id)).state is not PromptState.UNKNOWN:
            return True
    return False


async def _mark_of_prompt(backend: Backend, mark: RemoteMark, template: Template | None) -> RemoteMark:
    """Return the mark of a prompt on the server, with what can still be learned about what was sent. Raises NoReply."""
    details = {**_facts_of(template, await backend.kind()), "found": "true"}
    graph: JsonValue = await graph_of(backend.client, mark.key)
    if isinstance(graph, Mapping):
        try:
            details["graph_sha256"] = digest(graph)
        except NotJson:
            details["graph_sha256"] = "unreadable"
    if template is not None:
        details["seeds"] = _seeds_in(graph, template)
    return _mark_of_accepted(mark, backend, mark.key, details)


def _facts_of(template: Template | None, kind: ServerKind) -> dict[str, str]:
    server = {"comfyui_version": kind.version, "pytorch_version": kind.pytorch, "device": kind.device}
    if template is None:
        return server
    return {
        **server,
        "template": f"{template.name}@{template.version}",
        "template_sha256": template.sha256,
        "workflow_sha256": template.workflow_sha256,
    }


def _seeds_in(graph: JsonValue, template: Template) -> str:
    nodes = graph if isinstance(graph, Mapping) else {}
    found: dict[str, object] = {}
    for seed in template.seeds:
        node = nodes.get(seed.target.node)
        inputs = node.get("inputs") if isinstance(node, Mapping) else None
        if isinstance(inputs, Mapping) and isinstance(inputs.get(seed.target.input), int):
            found[seed.target.pointer] = inputs[seed.target.input]
    return _json(found)


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(dict(values), separators=(",", ":"), sort_keys=True) if values else ""


def _seeds_of_job(key: str) -> Callable[[], int]:
    """Return the seeds of one job: as random as its id, and the same when it must be sent again."""
    numbers = count()

    def draw() -> int:
        drawn = sha256(f"toolhub seed {key} {next(numbers)}".encode()).digest()
        return int.from_bytes(drawn[:8]) % (SEED_MAX + 1)

    return draw


def _cut(reported: Any, redact: Redact) -> str:
    """Return the errors of nodes in a form that a mark can store: without tracebacks and inputs."""
    kept: dict[str, Any] = {}
    for node, body in reported.items() if isinstance(reported, Mapping) else ():
        errors = body.get("errors") if isinstance(body, Mapping) else None
        listed = errors[:5] if isinstance(errors, list) else []
        kept[failures.quote_foreign(str(node), redact, 64)] = {
            "class_type": failures.quote_foreign(body.get("class_type"), redact, 200)
            if isinstance(body, Mapping)
            else "",
            "errors": [_bare(error, redact) for error in listed if isinstance(error, Mapping)],
        }
        if len(json.dumps(kept)) > _NODE_ERRORS_MAX_CHARS:
            break
    return json.dumps(kept)


def _bare(error: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    extra = error.get("extra_info")
    name = extra.get("input_name") if isinstance(extra, Mapping) else None
    quoted = {key: failures.quote_foreign(error.get(key), redact, 300) for key in ("type", "message", "details")}
    return {**quoted, "extra_info": {"input_name": failures.quote_foreign(name, redact, 128)} if name else {}}
