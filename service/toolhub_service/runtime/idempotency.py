"""Once per key: after policy and before budget, a call with an idempotency key runs, waits or gets the stored answer.

    the key is free ──────────────────── run; `end` stores the answer, or releases the key where nothing happened,
                                         nor will before a person has answered the tool's question
    other arguments, other definition ── IDEMPOTENCY_CONFLICT
    an answer is stored ──────────────── replay it
    its call still runs ──────────────── wait within the deadline and look again, or TIMEOUT
    its call is dead ─────────────────── run where a repeat is safe, else OUTCOME_UNKNOWN

After Stripe's idempotent requests and draft-ietf-httpapi-idempotency-key-header, with two differences: a dead runner is
detected by its expired lease, and a call whose outcome is unknown is never run again by itself unless a repeat is safe.
A lease is as long as the call may take, so nothing has to renew it. Reasons: docs/decisions/0009.
"""

from __future__ import annotations

from msgspec import structs

from toolhub_service.budget.deadline import effective_deadline_s
from toolhub_service.domain.call import Call, Mode, PlannedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.key import Claim, EffectKey, KeyRecord
from toolhub_service.domain.ports import Adapter, CallObserver, Clock, KeyStore, Randomness
from toolhub_service.domain.result import Evidence, EvidenceType, Plan, ToolResult
from toolhub_service.domain.tool import IdempotencyMode
from toolhub_service.runtime.attach_evidence import attach_refusal
from toolhub_service.runtime.call_state import CallState
from toolhub_service.runtime.long_results.cut_result import cut_to
from toolhub_service.schema.canonical_json import digest

# What is stored of the answer to a call with an idempotency key, and what a replayed answer says.

MAX_KEPT_BYTES = 1024 * 1024
"""Limit for a value's canonical JSON; a longer value is stored cut, with `truncated`."""

CUT_OFF = frozenset({ErrorKind.CANCELLED, ErrorKind.INTERNAL})
"""Errors that say nothing about the effect."""


def storable_answer(state: CallState, answer: ToolResult | None, now_unix_ms: int) -> ToolResult:
    """Return what to store: the answer without the upstream's own, or OUTCOME_UNKNOWN when it does not show the
    outcome."""
    cause = ErrorKind.CANCELLED if answer is None else answer.error.kind if answer.error else None
    if answer is None or cause in CUT_OFF:
        error = lost_answer_error(
            state.call.tool, state.call.call_id, ErrorKind.CANCELLED.value if cause is None else cause.value
        )
        return attach_refusal(state, error, now_unix_ms)
    if answer.ok and state.spec is not None and state.spec.limits.max_result_bytes > MAX_KEPT_BYTES:
        value, cut = cut_to(answer.value, MAX_KEPT_BYTES)
        if cut is not None:
            proof = cut.evidence._replace(created_at_unix_ms=now_unix_ms)
            return answer._replace(value=value, truncated=True, raw=None, evidence=(*answer.evidence, proof))
    return answer if answer.raw is None else answer._replace(raw=None)


def replay_answer(stored: ToolResult, call_id: str, now_unix_ms: int) -> ToolResult:
    """Return the stored answer: call_id, attempts and times of the call that ran, and this call's evidence as the last
    one.

    A retryable error is returned as final, because the same call can only get the same answer.
    """
    proof = Evidence(
        type=EvidenceType.TOOL,
        ref=call_id,
        summary=f"answered with the stored result of call {stored.call_id}",
        created_at_unix_ms=now_unix_ms,
    )
    error = stored.error
    if error is not None and error.is_retryable:
        advice = "This is the stored answer to the idempotency_key: check the effect, and try again with a new key."
        error = structs.replace(error, message=f"{error.message} {advice}", retryable=False, retry_after_s=None)
    return stored._replace(replayed=True, error=error, evidence=(*stored.evidence, proof))


def lost_answer_error(tool: str, call_id: str, cause: str) -> ToolError:
    """The end of the call that held the key was not observed."""
    return ToolError(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"An earlier call of {tool} with this idempotency_key was cut off and may have had its effect. "
        "Check that; if it had none, call again with a new key.",
        details={"cause": cause, "first_call_id": call_id},
    )


# How long the answer to a call is remembered that a job's log stores, too: as long as a takeover may take, because the
# log then has the answer or the outcome is unknown. A program has a thousand effects, and the number of keys is
# limited.
_LOGGED_TTL_MS = 600_000
# Time from a call's deadline until its runner counts as dead: enough to stop the work and store the answer.
_GRACE_MS = 30_000


class Idempotency:
    """Prevents calls with a key from having their effect twice."""

    def __init__(
        self,
        store: KeyStore,
        observer: CallObserver,
        clock: Clock,
        randomness: Randomness,
        *,
        ttl_s: float = 86_400.0,
        max_timeout_s: float = 600.0,
    ) -> None:
        """`ttl_s` is how long an answer is remembered, `max_timeout_s` the hub's bound on the time of any call."""
        self._store = store
        self._observer = observer
        self._clock = clock
        self._randomness = randomness
        self._ttl_ms = round(ttl_s * 1_000)
        self._max_timeout_s = max_timeout_s

    async def claim(self, state: CallState, adapter: Adapter) -> tuple[Claim | None, ToolResult | None]:
        """Return the claim to `end` when the call is over, or the answer to replay; with neither, the call runs without
        a key.

        Raises IDEMPOTENCY_CONFLICT, TIMEOUT, OUTCOME_UNKNOWN, BUDGET_EXCEEDED, or the store's failure when the call
        must not run without the store.
        """
        planned = state.planned
        assert planned is not None  # step 4 has set it
        key = effect_key(planned)
        if key is None or planned.call.mode is not Mode.EXECUTE:
            return None, None
        is_safe = planned.spec.annotations.safe_to_repeat or not adapter.has_side_effects(planned)
        claim = Claim(key, planned.call.waiting_job_id or self._randomness.token_hex(16), is_safe)
        try:
            stored = await self._claim(claim, planned)
        except _StoreRefused as refused:
            # Without its key a call that is safe to repeat loses nothing, but one with an effect loses its guarantee to
            # run once.
            if is_safe:
                return None, None
            raise refused.failure from refused
        if stored is None:
            return claim, None
        return None, replay_answer(stored, planned.call.call_id, self._clock.unix_ms())

    async def stored_answer(self, key: EffectKey) -> ToolResult | None:
        """Return the answer that is stored under a key; None where there is none. Raises the store's ToolFailure."""
        now_unix_ms, owner = self._clock.unix_ms(), self._randomness.token_hex(16)
        probe = KeyRecord(owner, "", "", "", now_unix_ms, now_unix_ms + _GRACE_MS)
        try:
            standing = await self._store.claim(key, probe)
        except ToolFailure as refused:
            if refused.error.kind is not ErrorKind.RATE_LIMITED:
                raise
            return None  # the store is full, but an existing record would have been found
        if standing is None:
            await self._store.release(key, owner)
            return None
        return standing.result

    async def end(self, claim: Claim, state: CallState, answer: ToolResult | Plan | None) -> None:
        """Store the answer of a call that is over, or release the key where a later call may run; None means it was cut
        off.

        Never raises for a broken store: the lease then expires, and the outcome is unknown.
        """
        result = answer if isinstance(answer, ToolResult) else None
        try:
            # Nothing was attempted, or a person is asked first: there is no effect yet that a repeat could double.
            if state.attempts == 0 or state.asks or (claim.safe_to_repeat and _may_run_again(result)):
                await self._store.release(claim.key, claim.owner)
            else:
                now_unix_ms = self._clock.unix_ms()
                stored = storable_answer(state, result, now_unix_ms)
                await self._store.settle(claim.key, claim.owner, stored, now_unix_ms + self._retention_ms(state.call))
        except ToolFailure as away:
            self._observer.on_unkept_result(state.call, away.error)
        except Exception as broken:  # noqa: BLE001 - the call has its answer, and no defect here may cost it
            self._observer.on_crash(state.call, broken)

    async def _claim(self, claim: Claim, planned: PlannedCall) -> ToolResult | None:
        """Return None once the key is claimed, else the answer that is stored under it."""
        now_s = self._clock.monotonic_s()
        deadline_s = effective_deadline_s(planned, now_s, self._max_timeout_s)
        lease_ms = round((deadline_s - now_s) * 1_000) + _GRACE_MS
        replacing = planned.call.waiting_job_id  # an earlier run of the job, which has died, claimed it under this name
        while (standing := await self._try(claim, planned, lease_ms, replacing)) is not None:
            _check_same(planned, standing)
            if standing.result is not None:
                return standing.result
            replacing = await self._outlast(claim, standing, deadline_s)
        return None

    async def _try(self, claim: Claim, planned: PlannedCall, lease_ms: int, replacing: str) -> KeyRecord | None:
        lease_until_unix_ms = self._clock.unix_ms() + lease_ms
        record = KeyRecord(
            owner=claim.owner,
            call_id=planned.call.call_id,
            args_digest=planned.args_digest,
            tool_digest=planned.spec.digest,
            lease_until_unix_ms=lease_until_unix_ms,
            expires_at_unix_ms=lease_until_unix_ms + self._retention_ms(planned.call),
        )
        try:
            return await self._store.claim(claim.key, record, replacing=replacing)
        except ToolFailure as failure:
            raise _StoreRefused(failure) from failure

    def _retention_ms(self, call: Call) -> int:
        is_logged = call.lineage is not None and call.lineage.is_kept and not call.job_id
        return min(self._ttl_ms, _LOGGED_TTL_MS) if is_logged else self._ttl_ms

    async def _outlast(self, claim: Claim, standing: KeyRecord, deadline_s: float) -> str:
        """Wait for the call that holds the key. Return its owner when that is dead and may be replaced, else an empty
        string."""
        lease_s = (standing.lease_until_unix_ms - self._clock.unix_ms()) / 1_000
        if lease_s <= 0:
            if claim.safe_to_repeat:
                return standing.owner
            raise ToolFailure(lost_answer_error(claim.key.tool, standing.call_id, "LOST"))
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s > 0:
            has_ended = await self._store.wait_for_end(claim.key, standing.owner, min(left_s, lease_s))
            # The call ended, or its holder ran out of time first: read the record again and decide by what it says
            # then.
            if has_ended or lease_s < left_s:
                return ""
        raise refuse(
            ErrorKind.TIMEOUT,
            "The first call with this idempotency_key is still running. Send the same call again for its result.",
            first_call_id=standing.call_id,
        )


class _StoreRefused(Exception):
    """A refusal by the store, as distinct from one because of the key."""

    def __init__(self, failure: ToolFailure) -> None:
        super().__init__()
        self.failure = failure


def effect_key(planned: PlannedCall) -> EffectKey | None:
    """Return the caller's key, else a derived one where the tool wants it and the request has a name; None: no key.

    The derived key is a sha256 (hex) over principal, request and call: adapters pass it upstream, where all principals
    may share one account.
    """
    call, tool = planned.call, planned.spec.name
    if call.idempotency_key:
        return EffectKey(call.principal.id, tool, call.idempotency_key)
    if planned.spec.idempotency is not IdempotencyMode.DERIVED or not call.context.request_id:
        return None
    request = [call.principal.id, call.context.request_id, call.context.task_id, tool, planned.args_digest]
    return EffectKey(call.principal.id, tool, digest(request))


def _check_same(planned: PlannedCall, standing: KeyRecord) -> None:
    """Raises IDEMPOTENCY_CONFLICT: a key belongs to one call of one definition."""
    if planned.args_digest != standing.args_digest:
        differs, how = "args", "with other arguments"
        advice = "Send a new key for a new effect, or the first arguments for the first result."
    elif planned.spec.digest != standing.tool_digest:
        differs, how = "tool_digest", "before its definition changed"
        advice = "Check what that call did before you send another with a new key."
    else:
        return
    message = f"This idempotency_key was used for {planned.spec.name} {how}. {advice}"
    raise refuse(ErrorKind.IDEMPOTENCY_CONFLICT, message, differs=differs, first_call_id=standing.call_id)


def _may_run_again(result: ToolResult | None) -> bool:
    """Return whether a call that is safe to repeat ended in a way that leaves something to retry."""
    return result is None or (result.error is not None and (result.error.is_retryable or result.error.kind in CUT_OFF))
