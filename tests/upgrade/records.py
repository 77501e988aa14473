"""What the stores of a hub hold, read through their ports, as plain JSON that outlives the names of classes."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.wiring.deps import SystemClock, SystemRandomness
from toolhub_service.app.wiring.stores import make_stores
from toolhub_service.domain.approval import ApprovalFilter
from toolhub_service.domain.job import JobFilter
from toolhub_service.domain.key import EffectKey, KeyRecord
from toolhub_service.domain.pin import PinFilter
from toolhub_service.settings.loading import load_settings

EVERYTHING = 1_000


@asynccontextmanager
async def opened_stores(settings_file: Path, data_dir: Path) -> AsyncIterator[Any]:
    """The stores that a hub with these settings would open."""
    settings = load_settings(settings_file, {"TOOLHUB_DATA_DIR": str(data_dir)})
    needed: Any = SimpleNamespace(
        settings=settings, paths=Paths(settings), clock=SystemClock(), randomness=SystemRandomness()
    )
    stores = make_stores(needed)
    await stores.start()
    try:
        yield stores
    finally:
        await stores.close()


async def read_records(
    stores: Any, keys: Collection[tuple[str, str, str]], artifacts: Collection[str]
) -> dict[str, Any]:
    """All jobs with their histories, approvals, pins and uses; the keys (principal, tool, key) and artifacts named."""
    jobs, _ = await stores.jobs.page(JobFilter(), after=None, limit=EVERYTHING)
    approvals, _ = await stores.approvals.page(ApprovalFilter(), after=None, limit=EVERYTHING)
    pins, _ = await stores.pins.page(PinFilter(), after=None, limit=EVERYTHING)
    uses, _ = await stores.usage.after(0, EVERYTHING)
    found: dict[str, Any] = plain(
        {
            "jobs": {job.job_id: await stores.jobs.get(job.job_id) for job in jobs},
            "histories": {job.job_id: await stores.jobs.history(job.job_id, 0, EVERYTHING) for job in jobs},
            "approvals": {one.approval_id: await stores.approvals.get(one.approval_id) for one in approvals},
            "keys": {" ".join(key): await _standing(stores, key) for key in keys},
            "artifacts": {id: await stores.artifacts.get(id) for id in artifacts},
            "pins": {f"{pin.tool} {pin.digest}": pin for pin in pins},
            "uses": uses,
        }
    )
    return found


async def _standing(stores: Any, key: tuple[str, str, str]) -> object:
    """The answer to a second claim."""
    second = KeyRecord(
        owner="nobody", call_id="none", args_digest="", tool_digest="", lease_until_unix_ms=0, expires_at_unix_ms=1
    )
    return await stores.keys.claim(EffectKey(*key), second)


def plain(value: Any) -> Any:
    """Any domain value as JSON: an enum by its name, a record by its fields."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(plain, value))
    if names := _fields(value):
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _fields(value: Any) -> tuple[str, ...]:
    if dataclasses.is_dataclass(value):
        return tuple(
            field.name for field in dataclasses.fields(value) if field.init
        )  # what follows from others is not kept
    return tuple(getattr(value, "__struct_fields__", ()) or getattr(value, "_fields", ()))
