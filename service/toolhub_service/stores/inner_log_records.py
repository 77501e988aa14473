"""The log of inner calls over any `RecordStore`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.inner_log import KeptCall
from toolhub_service.stores.codec import decode_kept_call, encode_kept_call
from toolhub_service.stores.record_store import BrokenRecord, Records, Table


def _row(kept: KeptCall) -> dict[str, Any]:
    return {
        "job_id": kept.job_id,
        "place": _place(kept.index),
        "version": kept.version,
        "expires_at_unix_ms": kept.expires_at_unix_ms,
    }


def _place(index: int) -> str:
    return f"{index:08d}"


INNER_CALLS: Final = Table(
    "inner_calls",
    ("job_id", "place"),
    _row,
    encode_kept_call,
    decode_kept_call,
    order=("expires_at_unix_ms", "job_id", "place"),
)


class InnerLogs(Records[KeptCall]):
    """Implements `InnerLogStore`."""

    async def put(self, kept: KeptCall) -> bool:
        return await self._records.put([kept])

    async def get(self, job_id: str, index: int) -> KeptCall | None:
        return await self._records.get((job_id, _place(index)))

    async def of_job(self, job_id: str) -> Sequence[KeptCall]:
        try:
            return sorted(await self._records.find("job_id", job_id), key=attrgetter("index"))
        except BrokenRecord:
            message = f"What job {job_id} has done cannot be read: its log is damaged. Check its effects."
            raise refuse(ErrorKind.OUTCOME_UNKNOWN, message, cause="LOG_UNREADABLE") from None

    async def read_expired(self, now_unix_ms: int, limit: int) -> Sequence[KeptCall]:
        return await self._records.read_expired(now_unix_ms, limit)

    async def forget_job(self, job_id: str) -> int:
        return await self._records.remove_all("job_id", job_id)
