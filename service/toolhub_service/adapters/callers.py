"""Callers' own credentials of sources, as adapters ask for them; their secrets are removed from what comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final

from msgspec import structs

from toolhub_service.adapters.source_config import SECRET_MIN_CHARS
from toolhub_service.credentials.secret import CallerCredential, PerUserTerms
from toolhub_service.credentials.vault import Vault
from toolhub_service.domain.call import GrantedCall, Principal, QuestionAsked
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import EventSink
from toolhub_service.domain.result import Chunk, Outcome, Progress
from toolhub_service.guards.headers import Headers
from toolhub_service.guards.secrets import Mask
from toolhub_service.guards.urls import ParsedUrl, parse_url
from toolhub_service.tools.hiding import HIDES, masked_failure, masked_outcome

REFUSED: Final = "CREDENTIAL_REFUSED"
"""The state of a credential that its source's server does not take."""


def refused(what: str, terms: PerUserTerms) -> ToolFailure:
    """The server does not take the caller's credential, also after a refresh where there is one."""
    return refuse(
        ErrorKind.PERMISSION_DENIED,
        f"{what} could not be called: the server refused the caller's own credential. It has not run. The "
        f"user gives another one with: {terms.command}",
        blames_upstream=False,
        source=terms.source,
        command=terms.command,
        state=REFUSED,
    )


# A server that hands out what it was called with hands out its caller's secret: an outcome, a failure, a question and
# progress are seen by models and kept in records.


async def hidden(
    credential: CallerCredential | None,
    latest: Callable[[], CallerCredential | None],
    sink: EventSink,
    run: Callable[[EventSink], Awaitable[Outcome]],
) -> Outcome:
    """What `run` gives, or raises, without the caller's secret. `latest`: the credential by now, which is another one
    once the server has refused the first."""
    masks = _Masks(latest)
    masks.add(credential)
    return await _masked(masks, sink, run)


async def _masked(masks: _Masks, sink: EventSink, run: Callable[[EventSink], Awaitable[Outcome]]) -> Outcome:
    before = HIDES.set(lambda: masks.mask)
    try:
        outcome = await run(_MaskedSink(sink, masks))
    except ToolFailure as failure:
        raise masked_failure(failure, masks.mask) from None
    except QuestionAsked as asked:
        question, mask = asked.question, masks.mask
        shown = replace(question, message=mask.text(question.message), schema=mask.object(question.schema))
        raise QuestionAsked(shown) from None
    finally:
        HIDES.reset(before)
    return masked_outcome(outcome, masks.mask)


class _Masks:
    """Of all secrets that one call's requests have carried so far."""

    def __init__(self, latest: Callable[[], CallerCredential | None] | None = None) -> None:
        self._latest = latest
        self._carried: dict[str, str] = {}
        self._mask = Mask()

    def add(self, credential: CallerCredential | None) -> None:
        """From now on; what is too short to be a secret would blank too much."""
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
    """The callers of one source, as its adapter asks for their credentials."""

    def __init__(self, vault: Vault, terms: PerUserTerms) -> None:
        self.terms = terms
        self.vault = vault
        self._given: dict[str, _Masks] = {}
        """By call that runs: what hides all that it was given."""

    async def of(self, call: GrantedCall) -> CallerCredential | None:
        """The caller's; None: it has none, and is served all the same. Raises ToolFailure."""
        return self._noted(call, await self.vault.credential(call.call.principal, self.terms.source))

    async def known(self, call: GrantedCall) -> CallerCredential | None:
        """The same for hiding it: None where there is none."""
        try:
            return await self.of(call)
        except ToolFailure:
            return None  # whoever needs it is refused

    async def renewed(self, call: GrantedCall, used: CallerCredential) -> CallerCredential | None:
        """Another one in the place of one that the server does not take; None: there is none. Raises ToolFailure."""
        return self._noted(call, await self.vault.renewed(call.call.principal, self.terms.source, used.secret))

    def _noted(self, call: GrantedCall, credential: CallerCredential | None) -> CallerCredential | None:
        if (masks := self._given.get(call.call.call_id)) is not None:
            masks.add(credential)
        return credential

    async def hidden(
        self, call: GrantedCall, sink: EventSink, run: Callable[[EventSink], Awaitable[Outcome]]
    ) -> Outcome:
        """As the function of that name, of a call that asks here for its credential."""
        call_id = call.call.call_id
        masks = self._given[call_id] = _Masks()
        try:
            await self.known(call)
            return await _masked(masks, sink, run)
        finally:
            del self._given[call_id]

    def refused(self, call: GrantedCall) -> ToolFailure:
        return refused(call.spec.name, self.terms)

    def merged(self, headers: Headers, credential: CallerCredential | None) -> Headers:
        """Headers of a request by the caller: what the source has of its own in their place does not go out with it."""
        if credential is None:
            return headers
        return (*others(headers, credential.header), (credential.header, credential.value))


def others(headers: Headers, header: str) -> Headers:
    """Those that say nothing of who calls."""
    return tuple(field for field in headers if field[0].lower() not in ("authorization", header))


def opened_for_callers(vault: Vault, terms: PerUserTerms | None) -> CallersOf | None:
    """None: the source has no credentials of callers. Raises ValueError where they cannot be kept."""
    if terms is None:
        return None
    vault.open_source(terms)
    return CallersOf(vault, terms)


class CallersOfHosts:
    """Callers of hosts that the built-in HTTP tools ask. Implements `HostCredentials`."""

    def __init__(self, vault: Vault, hosts: Iterable[PerUserTerms]) -> None:
        """Raises ValueError where credentials cannot be kept."""
        self._vault = vault
        self._terms = {terms.source: terms for terms in hosts}
        self._names = {parse_url(terms.server_url).origin: name for name, terms in self._terms.items()}
        for terms in self._terms.values():
            vault.open_host(terms)

    def name_at(self, url: ParsedUrl) -> str:
        return self._names.get(url.origin, "")

    async def of(self, principal: Principal, name: str) -> CallerCredential | None:
        return await self._vault.credential(principal, name) if principal.may_know_source(name) else None

    async def renewed(self, principal: Principal, name: str, used: str) -> CallerCredential | None:
        return await self._vault.renewed(principal, name, used)

    def refused(self, name: str) -> ToolFailure:
        return refused(f"The host {name}", self._terms[name])
