"""Callers' own credentials for sources, as adapters request them; the secrets are removed from what the source
returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final

from msgspec import structs

from toolhub_service.credentials.secret import CallerCredential, PerUserTerms
from toolhub_service.credentials.vault import Vault
from toolhub_service.domain.call import GrantedCall, Principal, QuestionAsked
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import Chunk, Outcome, Progress
from toolhub_service.egress.hiding import HIDES, mask_failure, mask_outcome
from toolhub_service.guards.headers import Headers
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.guards.urls import ParsedUrl, parse_url
from toolhub_service.sections.source_config import SECRET_MIN_CHARS

REFUSED: Final = "CREDENTIAL_REFUSED"
"""State of a credential that the source's server rejects."""


def credential_refusal(what: str, terms: PerUserTerms) -> ToolFailure:
    """The server rejects the caller's credential, even after a refresh where refreshing is possible."""
    return refuse(
        ErrorKind.PERMISSION_DENIED,
        f"{what} could not be called: the server refused the caller's own credential. It has not run. The "
        f"user gives another one with: {terms.command}",
        blames_upstream=False,
        source=terms.source,
        command=terms.command,
        state=REFUSED,
    )


# A server may echo the credential that it was called with. Outcomes, failures, questions and progress are seen by
# models and stored in records, so the secret is masked in all of them.


async def run_masked(
    credential: CallerCredential | None,
    latest: Callable[[], CallerCredential | None],
    sink: EventSink,
    run: Callable[[EventSink], Awaitable[Outcome]],
) -> Outcome:
    """Return or raise what `run` does, with the caller's secret masked. `latest` returns the current credential, which
    is a new one after the server has rejected the first."""
    masks = _Masks(latest)
    masks.add(credential)
    return await _run_with_masks(masks, sink, run)


async def _run_with_masks(masks: _Masks, sink: EventSink, run: Callable[[EventSink], Awaitable[Outcome]]) -> Outcome:
    before = HIDES.set(lambda: masks.mask)
    try:
        outcome = await run(_MaskedSink(sink, masks))
    except ToolFailure as failure:
        raise mask_failure(failure, masks.mask) from None
    except QuestionAsked as asked:
        question, mask = asked.question, masks.mask
        shown = replace(question, message=mask.text(question.message), schema=mask.object(question.schema))
        raise QuestionAsked(shown) from None
    finally:
        HIDES.reset(before)
    return mask_outcome(outcome, masks.mask)


class _Masks:
    """Masks all secrets that the requests of one call have carried so far."""

    def __init__(self, latest: Callable[[], CallerCredential | None] | None = None) -> None:
        self._latest = latest
        self._carried: dict[str, str] = {}
        self._mask = Mask()

    def add(self, credential: CallerCredential | None) -> None:
        """Mask this credential from now on, unless it is so short that masking it would blank ordinary text."""
        if credential is None or credential.secret in self._carried or len(credential.secret) < SECRET_MIN_CHARS:
            return
        self._carried[credential.secret] = credential.value
        self._mask = Mask((*self._carried, *self._carried.values()))

    @property
    def mask(self) -> Mask:
        if self._latest is not None:
            self.add(self._latest())
        return self._mask


class _MaskedSink:
    """Implements `EventSink`."""

    def __init__(self, sink: EventSink, masks: _Masks) -> None:
        self._sink = sink
        self._masks = masks

    def progress(self, progress: Progress) -> None:
        self._sink.progress(structs.replace(progress, message=self._masks.mask.text(progress.message)))

    def chunk(self, chunk: Chunk) -> None:
        self._sink.chunk(chunk)


class CallersOf:
    """Credentials of the callers of one source."""

    def __init__(self, vault: Vault, terms: PerUserTerms) -> None:
        self.terms = terms
        self.vault = vault
        self._given: dict[str, _Masks] = {}
        """Masks of each running call, by its id."""

    async def of(self, call: GrantedCall) -> CallerCredential | None:
        """Return the caller's credential; None when the source also serves callers without one. Raises ToolFailure."""
        return self._mask_in_call(call, await self.vault.credential(call.call.principal, self.terms.source))

    async def credential_to_mask(self, call: GrantedCall) -> CallerCredential | None:
        """Return the caller's credential for masking only: None instead of a ToolFailure when there is none."""
        try:
            return await self.of(call)
        except ToolFailure:
            return None  # the call itself fails where it needs the credential

    async def renew(self, call: GrantedCall, used: CallerCredential) -> CallerCredential | None:
        """Return a new credential in place of one that the server rejects; None when there is none. Raises
        ToolFailure."""
        return self._mask_in_call(call, await self.vault.renew(call.call.principal, self.terms.source, used.secret))

    def _mask_in_call(self, call: GrantedCall, credential: CallerCredential | None) -> CallerCredential | None:
        if (masks := self._given.get(call.call.call_id)) is not None:
            masks.add(credential)
        return credential

    async def run_masked(
        self, call: GrantedCall, sink: EventSink, run: Callable[[EventSink], Awaitable[Outcome]]
    ) -> Outcome:
        """Do the same as the function `run_masked`, for a call that requests its credential here."""
        call_id = call.call.call_id
        masks = self._given[call_id] = _Masks()
        try:
            await self.credential_to_mask(call)
            return await _run_with_masks(masks, sink, run)
        finally:
            del self._given[call_id]

    def refusal(self, call: GrantedCall) -> ToolFailure:
        return credential_refusal(call.spec.name, self.terms)

    def merge_headers(self, headers: Headers, credential: CallerCredential | None) -> Headers:
        """Return the headers with the caller's credential; the source's own authorization headers are left out."""
        if credential is None:
            return headers
        return (*others(headers, credential.header), (credential.header, credential.value))


def others(headers: Headers, header: str) -> Headers:
    """Return the headers that do not identify the caller."""
    return tuple(field for field in headers if field[0].lower() not in ("authorization", header))


def open_for_callers(vault: Vault, terms: PerUserTerms | None) -> CallersOf | None:
    """Return None when the source has no per-user credentials. Raises ValueError where they cannot be stored."""
    if terms is None:
        return None
    vault.open_source(terms)
    return CallersOf(vault, terms)


class CallersOfHosts:
    """Credentials for the hosts that the built-in HTTP tools call. Implements `HostCredentials`."""

    def __init__(self, vault: Vault, hosts: Iterable[PerUserTerms]) -> None:
        """Raises ValueError where credentials cannot be stored."""
        self._vault = vault
        self._terms = {terms.source: terms for terms in hosts}
        self._names = {parse_url(terms.server_url).origin: name for name, terms in self._terms.items()}
        for terms in self._terms.values():
            vault.open_host(terms)

    def name_at(self, url: ParsedUrl) -> str:
        return self._names.get(url.origin, "")

    async def of(self, principal: Principal, name: str) -> CallerCredential | None:
        return await self._vault.credential(principal, name) if principal.may_know_source(name) else None

    async def renew(self, principal: Principal, name: str, used: str) -> CallerCredential | None:
        return await self._vault.renew(principal, name, used)

    def refusal(self, name: str) -> ToolFailure:
        return credential_refusal(f"The host {name}", self._terms[name])
