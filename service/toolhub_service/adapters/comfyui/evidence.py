"""What proves a run: what was sent and where, what ran and what was there already, and each file by its digest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from toolhub_service.adapters.comfyui.outputs import FileRecord
from toolhub_service.adapters.comfyui.server_kind import ServerKind
from toolhub_service.adapters.comfyui.states import Seen
from toolhub_service.adapters.comfyui.template import BoundGraph, Template
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.job import RemoteMark
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType

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
