"""What a server is: its version and device, and which routes it has. Asked when it is first used and at each reading.

0.33 answers `/api/jobs` (one atomic look at a job, one atomic cancel); 0.3.64 has none of it: 404 with an empty body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolhub_service.adapters.comfyui.client import ComfyClient, NoReply
from toolhub_service.adapters.shortening import one_line

_WORD_MAX_CHARS: Final = 64
_JUDGED_CHARS: Final = 4_000


@dataclass(frozen=True, slots=True)
class ServerKind:
    """In the server's own words, cut; untrusted."""

    version: str = ""
    pytorch: str = ""
    device: str = ""
    has_jobs: bool = False
    upload_max_bytes: int = 0
    """0: it does not say."""


async def kind_of(client: ComfyClient) -> ServerKind:
    """Raises NoReply."""
    stats = await client.get("/system_stats")
    system, devices = stats.fields.get("system"), stats.fields.get("devices")
    if not isinstance(system, Mapping):
        raise NoReply(f"what answers there ({stats.status}) is no ComfyUI server", was_sent=False)
    first = devices[0] if isinstance(devices, list) and devices else None
    jobs = await client.get("/api/jobs", {"limit": "1"})
    features = (await client.get("/features")).fields
    cap = features.get("max_upload_size")
    return ServerKind(
        version=_word(system, "comfyui_version", client.redact),
        pytorch=_word(system, "pytorch_version", client.redact),
        device=_word(first, "name", client.redact),
        has_jobs=isinstance(jobs.fields.get("jobs"), list),
        upload_max_bytes=cap if isinstance(cap, int) and cap > 0 else 0,
    )


def _word(holder: object, key: str, redact: Callable[[str], str]) -> str:
    said: Any = holder.get(key) if isinstance(holder, Mapping) else None
    return one_line(redact(said[:_JUDGED_CHARS]), _WORD_MAX_CHARS) if isinstance(said, str) else ""
