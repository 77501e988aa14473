"""The newer version's `/api/jobs`: queue and history in one shape, without what is not known."""

from __future__ import annotations

from typing import Any

from tests.fakes.comfyui.work_queue import Entry, Item, WorkQueue

STATUSES = ["pending", "in_progress", "completed", "failed", "cancelled"]
_PREVIEWABLE = frozenset({"images", "video", "audio"})
_ENDS = frozenset({"execution_success", "execution_error", "execution_interrupted"})


def one(queue: WorkQueue, prompt_id: str) -> dict[str, Any] | None:
    """A job with its outputs, if it has ended; None: nobody knows it."""
    if (entry := queue.history.get(prompt_id)) is not None:
        _, _, graph, extra, _ = entry["prompt"]
        ended = {"outputs": entry["outputs"], "execution_status": entry["status"]}
        return _ended(prompt_id, entry) | ended | {"workflow": {"prompt": graph, "extra_data": extra}}
    return next((job for job in _waiting(queue) if job["id"] == prompt_id), None)


def listed(queue: WorkQueue, statuses: list[str], offset: int, limit: int | None) -> dict[str, Any]:
    """Newest first."""
    jobs = _waiting(queue) + [_ended(prompt_id, entry) for prompt_id, entry in queue.history.items()]
    jobs = [job for job in jobs if job["status"] in statuses]
    jobs.sort(key=lambda job: job.get("create_time", 0), reverse=True)
    page = jobs[offset:][:limit]
    more = offset + len(page) < len(jobs)
    return {"jobs": page, "pagination": {"offset": offset, "limit": limit, "total": len(jobs), "has_more": more}}


def _waiting(queue: WorkQueue) -> list[dict[str, Any]]:
    running = [_queued(queue.running, "in_progress")] if queue.running else []
    return running + [_queued(item, "pending") for item in queue.pending]


def _queued(item: Item, status: str) -> dict[str, Any]:
    number, prompt_id, _, extra, _ = item
    job = {"id": prompt_id, "status": status, "priority": number, "outputs_count": 0, "previewable_outputs_count": 0}
    return job | _about(extra)


def _about(extra: dict[str, Any]) -> dict[str, Any]:
    workflow_id = extra.get("extra_pnginfo", {}).get("workflow", {}).get("id")
    return {"create_time": extra["create_time"]} | ({"workflow_id": workflow_id} if workflow_id else {})


def _ended(prompt_id: str, entry: Entry) -> dict[str, Any]:
    number, _, _, extra, _ = entry["prompt"]
    messages: dict[str, dict[str, Any]] = dict(entry["status"]["messages"])
    shown = _shown(entry["outputs"])
    previews = [each for each in shown if each["mediaType"] in _PREVIEWABLE]
    job: dict[str, Any] = {
        "id": prompt_id,
        "status": _status(entry, messages),
        "priority": number,
        "execution_start_time": messages["execution_start"]["timestamp"],
        "outputs_count": len(shown),
        "previewable_outputs_count": len(previews),
    }
    job["execution_end_time"] = next(data["timestamp"] for kind, data in messages.items() if kind in _ENDS)
    if "execution_error" in messages:
        job["execution_error"] = messages["execution_error"]
    if previews:
        job["preview_output"] = next((each for each in previews if each.get("type") == "output"), previews[0])
    return job | _about(extra)


def _status(entry: Entry, messages: dict[str, Any]) -> str:
    if "execution_interrupted" in messages:
        return "cancelled"
    return "completed" if entry["status"]["status_str"] == "success" else "failed"


def _shown(outputs: dict[str, dict[str, list[Any]]]) -> list[dict[str, Any]]:
    return [
        {**item, "nodeId": node_id, "mediaType": key}
        for node_id, kinds in outputs.items()
        for key, items in kinds.items()
        for item in items
        if isinstance(item, dict)
    ]
