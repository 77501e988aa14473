"""Getting a prompt onto one server, once.

What can fail before the graph is sent (no connection, an upload) sends it to the next server. Once it may have been
taken, only an answer counts, or a look: jobs, queue and history, twice around, on the server that it was sent to, which
the mark names from before it is sent. That it is not there is certain only where the server has been there all the
time, for one that is started anew has forgotten what it ran, and does not tell since when it runs. What tells is a
witness: a prompt that it knew before, named in the mark as well, and still knows.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from itertools import count
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from toolhub_service.adapters.comfyui import failures
from toolhub_service.adapters.comfyui.arguments import bound, uploads_of
from toolhub_service.adapters.comfyui.backends import Backend, Backends, ServerKind
from toolhub_service.adapters.comfyui.client import NoReply, Reply
from toolhub_service.adapters.comfyui.outputs import FileRecord
from toolhub_service.adapters.comfyui.states import ID, Seen, Stage, graph_of, whole_number
from toolhub_service.adapters.comfyui.template import SEED_MAX, BoundGraph, ShelvedTemplate, Template
from toolhub_service.adapters.comfyui.uploads import Uploader, tenant_of
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import RemoteUnclear
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType
from toolhub_service.guards.secrets import Redact
from toolhub_service.schema.canonical_json import NotJson, digest

# What proves a run: what was sent and where, what ran and what was there already, and each file by its digest.

_FILES_MAX: Final = 64
_NODES_MAX: Final = 200


def sent_facts(
    template: Template, graph: BoundGraph, kind: ServerKind, *, client_id: str, uploads: Mapping[str, str], number: str
) -> dict[str, str]:
    """Of a prompt that was taken: what its mark keeps."""
    known = {
        **template_facts(template),
        "graph_sha256": graph.sha256,
        "seeds": _written(graph.seeds),
        "prefixes": _written(graph.prefixes),
        "uploads": _written(uploads),
        "client_id": client_id,
        "number": number,
        **server_facts(kind),
    }
    return {name: value for name, value in known.items() if value}


def template_facts(template: Template) -> dict[str, str]:
    return {
        "template": f"{template.name}@{template.version}",
        "template_sha256": template.sha256,
        "workflow_sha256": template.workflow_sha256,
    }


def seeds_in(graph: JsonValue, template: Template) -> str:
    """The seeds of a graph as it was found on a server."""
    nodes = graph if isinstance(graph, Mapping) else {}
    found: dict[str, object] = {}
    for seed in template.seeds:
        node = nodes.get(seed.target.node)
        inputs = node.get("inputs") if isinstance(node, Mapping) else None
        if isinstance(inputs, Mapping) and isinstance(inputs.get(seed.target.input), int):
            found[seed.target.pointer] = inputs[seed.target.input]
    return _written(found)


def server_facts(kind: ServerKind) -> dict[str, str]:
    return {"comfyui_version": kind.version, "pytorch_version": kind.pytorch, "device": kind.device}


def run_evidence(
    call: GrantedCall, mark: RemoteMark, template: Template, seen: Seen, files: Sequence[FileRecord]
) -> tuple[Evidence, ...]:
    """One for the run, and one for each file (64 at most)."""
    cached = [node for node in seen.cached if node in template.graph]
    executed = [node for node in template.graph if node not in cached]
    ended = seen.time_of("execution_success", "execution_error", "execution_interrupted")
    times = {
        "created_at_unix_ms": seen.created_ms,
        "started_at_unix_ms": seen.time_of("execution_start"),
        "ended_at_unix_ms": ended,
    }
    attributes = {
        "source": call.spec.source,
        "backend": mark.endpoint,
        "prompt_id": mark.remote_id,
        "args_digest": call.planned.args_digest,
        "cached_nodes": ",".join(cached[:_NODES_MAX]),
        "executed_nodes": ",".join(executed[:_NODES_MAX]),
        "fully_cached": "true" if not executed else "false",
        **{name: str(at) for name, at in times.items() if at},
    }
    if mark.details.get("template_sha256", template.sha256) != template.sha256:
        attributes["collected_with_template_sha256"] = template.sha256
    what = "took every result from its cache" if not executed else f"ran {len(executed)} of {len(template.graph)} nodes"
    summary = f"{call.spec.name}: {mark.endpoint} {what}, {len(files)} files"
    run = Evidence(EvidenceType.TOOL, mark.remote_id, summary, attributes=attributes)
    return (run, *(_of_file(record) for record in files[:_FILES_MAX]))


def _of_file(record: FileRecord) -> Evidence:
    ref, served = record.ref, record.served
    attributes = {
        "output": record.output.name,
        "node": record.output.node,
        "key": record.output.key,
        "filename": served.filename,
        "subfolder": served.subfolder,
        "type": served.type,
        "bytes": str(ref.size_bytes),
        "media_type": ref.media_type,
        "etag": record.etag,
        "served_bytes": str(record.served_bytes),
        "served_sha256": record.served_sha256,
        "metadata": "taken out" if record.is_sieved else "as the server wrote them",
    }
    summary = f"{record.output.name}: {ref.media_type}, {ref.size_bytes:,} bytes"
    return Evidence(EvidenceType.FILE, ref.artifact_id, summary, sha256=ref.sha256, attributes=attributes)


def _written(values: Mapping[str, object]) -> str:
    return json.dumps(dict(values), separators=(",", ":"), sort_keys=True) if values else ""


SOCKET_WITHIN_S: Final = 2.0
"""How long a start waits for the WebSocket over which it would be heard of."""
NODE_ERRORS: Final = "node_errors"
"""Detail of a mark: what the server would not run of a graph that it took all the same."""
_NODE_ERRORS_MAX_CHARS: Final = 8_000
_LOOKS: Final = 2
_REQUEST_TIMEOUT: Final = 408
_SENT_TO: Final = "sent_to"
_WITNESS: Final = "its_server_knew"
_MAY_HAVE_FORGOTTEN: Final = (
    "Its server does not know it, and may have been started anew since it was sent: then it has forgotten what it ran."
)

KeepMark = Callable[[str, RemoteMark], Awaitable[None]]
"""As `RunningJobs.keep_mark`."""


class _Sending(NamedTuple):
    """Where a prompt is, or may have been, sent."""

    backend: str
    witness: str
    """A prompt that its server knew before; empty: none."""

    def noted(self, mark: RemoteMark) -> RemoteMark:
        return replace(mark, details={**mark.details, _SENT_TO: self.backend, _WITNESS: self.witness})


def _noted(mark: RemoteMark) -> _Sending | None:
    """As an earlier run has kept it; None: nothing was sent."""
    backend = mark.details.get(_SENT_TO)
    return _Sending(backend, mark.details.get(_WITNESS, "")) if backend else None


class Submitter:
    """Of one source."""

    def __init__(self, backends: Backends, uploader: Uploader, keep_mark: KeepMark, redact: Redact) -> None:
        self._backends = backends
        self._uploader = uploader
        self._keep_mark = keep_mark
        self._redact = redact
        self._sent: dict[str, _Sending] = {}
        self._broken_off: set[str] = set()
        """Keys whose server went away, or seemed to, while they were looked up: it may have forgotten them."""

    def forget(self, key: str) -> None:
        self._sent.pop(key, None)
        self._broken_off.discard(key)

    async def start(self, call: GrantedCall, mark: RemoteMark, shelved: ShelvedTemplate) -> RemoteMark:
        """As `RemoteJob.start`."""
        tried: dict[str, str] = {}
        while True:
            backend = await self._backends.choose(shelved.backends - tried.keys())
            if backend is None:
                raise failures.no_server(call, tried)
            try:
                with backend.sending():
                    return await self._submit(backend, shelved.template, call, mark)
            except NoReply as unreached:
                tried[backend.name] = unreached.reason
                backend.has_failed()

    async def find(self, call: GrantedCall, mark: RemoteMark, template: Template | None) -> RemoteMark | None:
        """As `RemoteJob.find`."""
        sent = self._sent.get(mark.key) or _noted(mark)
        silent: RemoteUnclear | None = None
        for backend in self._places(sent):
            try:
                if await _is_known(backend, mark.key):
                    return await _found(backend, mark, template)
                if sent is not None and not (call.safe_to_repeat or await self._was_there(backend, mark.key, sent)):
                    raise RemoteUnclear(_MAY_HAVE_FORGOTTEN)
            except NoReply as unreached:
                silent = RemoteUnclear(failures.unclear(backend.name, unreached))
                if unreached.is_broken:
                    self._broken_off.add(mark.key)
        if silent is not None:
            raise silent
        return None

    def _places(self, sent: _Sending | None) -> list[Backend]:
        """Where it may be. Raises RemoteUnclear."""
        if sent is None:
            return list(self._backends)
        backend = self._backends.get(sent.backend)
        if backend is None:
            raise RemoteUnclear(f"The server {sent.backend}, to which it was sent, is not configured any more.")
        return [backend]

    async def _was_there(self, backend: Backend, key: str, sent: _Sending) -> bool:
        """Whether the server that does not know it has certainly not been started anew since. Raises NoReply."""
        if sent.witness:
            return (await backend.look(sent.witness)).stage is not Stage.UNKNOWN
        return key in self._sent and key not in self._broken_off

    async def _submit(self, backend: Backend, template: Template, call: GrantedCall, mark: RemoteMark) -> RemoteMark:
        """Raises NoReply when it certainly was not sent, ToolFailure when it was refused, RemoteUnclear."""
        kind = await backend.kind()
        uploads = await self._uploaded(backend, template, call, kind)
        names = {"tenant": tenant_of(call.call.principal.id), "job_id": call.call.job_id or mark.key}
        graph = bound(template, call.args, uploads=uploads, seeds=_drawn(mark.key), names=names)
        client_id = await backend.events.ready(SOCKET_WITHIN_S)
        await self._note(backend, call, mark)
        body = {"prompt": graph.graph, "prompt_id": mark.key, **({"client_id": client_id} if client_id else {})}
        reply = await self._posted(backend, body)
        prompt_id = self._prompt_id(reply, backend, template, call)
        number = whole_number(reply.fields.get("number"))
        told = "" if number is None else str(number)
        details = sent_facts(template, graph, kind, client_id=client_id, uploads=uploads, number=told)
        if reply.fields.get("node_errors"):
            details[NODE_ERRORS] = _cut(reply.fields["node_errors"], self._redact)
        return _accepted(mark, backend, prompt_id, details)

    def _prompt_id(self, reply: Reply, backend: Backend, template: Template, call: GrantedCall) -> str:
        """Of a prompt that was taken. Raises ToolFailure when it was refused, RemoteUnclear."""
        if 300 <= reply.status < 500 and reply.status != _REQUEST_TIMEOUT:
            raise failures.refused(call, template, reply, self._redact)
        prompt_id = reply.fields.get("prompt_id")
        if reply.status != 200 or not isinstance(prompt_id, str) or ID.fullmatch(prompt_id) is None:
            raise RemoteUnclear(f"The server {backend.name} answered {reply.status}, which says nothing of the job.")
        return prompt_id

    async def _uploaded(
        self, backend: Backend, template: Template, call: GrantedCall, kind: ServerKind
    ) -> dict[str, str]:
        """By artifact: the name by which a node loads it. Raises as `Uploader.put`."""
        return {
            upload.artifact_id: await self._uploader.put(backend.client, call, upload, kind.upload_max_bytes)
            for upload in uploads_of(template, call.args)
        }

    async def _note(self, backend: Backend, call: GrantedCall, mark: RemoteMark) -> None:
        """Keep where it is about to be sent, and by what its server can be known again. Raises ToolFailure."""
        sending = _Sending(backend.name, backend.witness)
        await self._keep_mark(call.call.job_id, sending.noted(mark))
        self._sent[mark.key] = sending

    async def _posted(self, backend: Backend, body: Mapping[str, Any]) -> Reply:
        try:
            return await backend.client.post("/prompt", body)
        except NoReply as broken:
            if not broken.was_sent:
                raise
            raise RemoteUnclear(failures.unclear(backend.name, broken)) from broken


def _accepted(mark: RemoteMark, backend: Backend, prompt_id: str, details: Mapping[str, str]) -> RemoteMark:
    return replace(mark, remote_id=prompt_id, accepted=True, endpoint=backend.name, details={**mark.details, **details})


async def _is_known(backend: Backend, prompt_id: str) -> bool:
    for _ in range(_LOOKS):
        if (await backend.look(prompt_id)).stage is not Stage.UNKNOWN:
            return True
    return False


async def _found(backend: Backend, mark: RemoteMark, template: Template | None) -> RemoteMark:
    """The mark of a prompt that is there, with what can still be learnt of what was sent."""
    details = {**server_facts(await backend.kind()), "found": "true"}
    graph: JsonValue = await graph_of(backend.client, mark.key)
    if isinstance(graph, Mapping):
        try:
            details["graph_sha256"] = digest(graph)
        except NotJson:
            details["graph_sha256"] = "unreadable"
    if template is not None:
        details |= template_facts(template)
        details["seeds"] = seeds_in(graph, template)
    return _accepted(mark, backend, mark.key, {name: value for name, value in details.items() if value})


def _drawn(key: str) -> Callable[[], int]:
    """Seeds of one job: as random as its id, and the same again when it has to be sent again."""
    numbers = count()

    def draw() -> int:
        drawn = sha256(f"toolhub seed {key} {next(numbers)}".encode()).digest()
        return int.from_bytes(drawn[:8]) % (SEED_MAX + 1)

    return draw


def _cut(said: Any, redact: Redact) -> str:
    """What is wrong with nodes, as a mark can keep it: without tracebacks and inputs."""
    kept: dict[str, Any] = {}
    for node, body in said.items() if isinstance(said, Mapping) else ():
        errors = body.get("errors") if isinstance(body, Mapping) else None
        listed = errors[:5] if isinstance(errors, list) else []
        kept[failures.quoted(str(node), redact, 64)] = {
            "class_type": failures.quoted(body.get("class_type"), redact, 200) if isinstance(body, Mapping) else "",
            "errors": [_bare(error, redact) for error in listed if isinstance(error, Mapping)],
        }
        if len(json.dumps(kept)) > _NODE_ERRORS_MAX_CHARS:
            break
    return json.dumps(kept)


def _bare(error: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    extra = error.get("extra_info")
    name = extra.get("input_name") if isinstance(extra, Mapping) else None
    told = {key: failures.quoted(error.get(key), redact, 300) for key in ("type", "message", "details")}
    return {**told, "extra_info": {"input_name": failures.quoted(name, redact, 128)} if name else {}}
