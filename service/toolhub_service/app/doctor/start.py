"""Checks whether a hub with these settings would start: a failure for each reason that is seen without starting."""

from __future__ import annotations

from toolhub_service.app.doctor import Finding, fail
from toolhub_service.app.start_checks import START_CHECKS
from toolhub_service.app.start_refusals import reason_and_remedy, refusals, start_refusal
from toolhub_service.settings.document import Settings


async def start_findings(settings: Settings) -> list[Finding]:
    """Return one failure for each subject that keeps the hub from starting, in the words of `toolhub serve`."""
    found = []
    for each in START_CHECKS:
        try:
            await each.check(settings)
        except refusals() as refused:
            reason, remedy = reason_and_remedy(start_refusal(refused, settings))
            found.append(fail(each.name, reason, remedy or each.advice))
    return found
