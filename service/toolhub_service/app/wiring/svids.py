"""Follows the Workload API while the hub serves: puts its updates in force, and reports outages."""

from __future__ import annotations

import asyncio
from typing import Final

from toolhub_service.app.certificates import CERTIFICATE, WORKLOAD_API, Change, LiveCertificates
from toolhub_service.app.wiring.telemetry import Observing
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.identity.workload_api import AgentUnavailable, AnswerUnusable, X509Context, contexts

_PAUSE_S: Final = 1.0
"""Pause before the agent is asked again; doubled each time, up to _PAUSE_MAX_S."""
_PAUSE_MAX_S: Final = 30.0


class Svids:
    """One stream, reopened whenever it ends. Without a stream, the last SVID and bundles are used."""

    def __init__(
        self, endpoint: str, certificates: LiveCertificates, observing: Observing, clock: Clock, randomness: Randomness
    ) -> None:
        """`endpoint` is the Workload API's."""
        self._endpoint = endpoint
        self._certificates = certificates
        self._observing = observing
        self._clock = clock
        self._randomness = randomness
        self._task: asyncio.Task[None] | None = None
        self._problem: str | None = None
        """Why there is no stream; empty when there is one; None when neither was reported yet."""
        self._has_expired = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="SPIFFE Workload API")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _follow(self) -> None:
        pause_s = _PAUSE_S
        while True:
            try:
                async for context in contexts(self._endpoint):
                    pause_s = _PAUSE_S
                    await self._take(context)
            except AgentUnavailable as away:
                self._stream_ended(str(away))
            except Exception as defect:  # noqa: BLE001 - the stream must be opened again, whatever this one met
                self._observing.reload_failed(defect)
            await asyncio.sleep(self._randomness.uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _take(self, context: X509Context | AnswerUnusable) -> None:
        if isinstance(context, AnswerUnusable):
            validity = self._certificates.validities[CERTIFICATE]
            self._observing.certificate_changed(Change(WORKLOAD_API, validity, f"{self._endpoint}: {context}."))
            return
        for change in await asyncio.to_thread(self._certificates.take, context):
            self._observing.certificate_changed(change)
        if self._problem != "":
            self._problem = ""
            self._report()
        self._has_expired = False

    def _stream_ended(self, problem: str) -> None:
        """Report once, and once more when the certificate in use has expired."""
        if not self._problem:
            self._problem = problem
            self._report()
        is_over = self._certificates.validities[CERTIFICATE].end_s * 1_000 <= self._clock.unix_ms()
        if is_over and not self._has_expired:
            self._has_expired = True
            self._observing.svid_expired(self._certificates.spiffe_id, problem)

    def _report(self) -> None:
        end_s = self._certificates.validities[CERTIFICATE].end_s
        self._observing.workload_api_is(self._certificates.spiffe_id, self._problem or "", end_s)
