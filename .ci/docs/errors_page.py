"""docs/errors.md, from the tables of errors in domain/."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tables import NOTICE, code, table

from toolhub_service.domain.errors.kinds import ERROR_KINDS, ErrorKind
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.errors.spec import JOB_DETAILS, POLICY_DETAILS, REMOTE_DETAILS, HubReason, StartReason
from toolhub_service.transport.status import ERROR_DOMAIN

_HEAD = f"""# Errors

Every way in which a call or an RPC can fail, for those who write agents and clients.
{NOTICE.format(source="`domain/errors/kinds.py`, `domain/errors/reasons.py` and `domain/errors/spec.py`")}
The clients carry the same tables: `toolhub_client.errors` (Python), `errors.go` (Go), `errors.ts` (TypeScript).

There are two kinds of failure. *The RPC itself failed* (no credential, a malformed envelope, an overloaded hub): a
gRPC status other than OK with `google.rpc.ErrorInfo`; see [reasons](#reasons-of-rpc-errors). *The call was refused or
ran and did not succeed*: status OK and a `ToolResult` with `ok = false` and a `ToolError`:

- `kind`, below, and `message`: what happened and what to do differently, written for a model, without exception text
  of the hub or secrets;
- `retryable`: whether the same call, unchanged, may succeed later and is safe to send again, and `retry_after` where
  the hub knows when;
- `violations`: every broken schema rule, by JSON Pointer; `details`: facts for repair; `upstream`: what a remote
  system said, redacted.

In a dry run the error stands at the step of the plan that failed. *Retryable* below holds for an error that does not
say; one error may say otherwise. *Equal status* is what an RPC error of the same meaning has.

## Kinds of tool errors
"""

_COMMON = """
## Details of any kind

Beside the details of its kind, an error may have these. A refusal by policy (step `check_policy`), except a plan that
does not fit:
"""

_REASONS_HEAD = f"""
## Reasons of RPC errors

`ErrorInfo.domain` is `{ERROR_DOMAIN}`; branch on `reason`, never on the message; proxies find it in plain text in the
trailer `toolhub-reason`. Where waiting helps, RetryInfo says how long. A reason may also be the name of a kind above,
with its equal status: an RPC that is no call failed so.

A status without ErrorInfo is of gRPC itself, or of a proxy. RESOURCE_EXHAUSTED from a client or a server of gRPC means
that a message is too large: send large content as an artifact.
"""

_STARTS = """
## What keeps a hub from starting

`toolhub serve` prints the message and exits with 1. A store that cannot be opened or reached is reported as
[`TOOL_UNAVAILABLE`](#tool_unavailable).
"""


def page() -> str:
    lines = [_HEAD, *table(("kind", "retryable", "equal status"), map(_overview, ErrorKind))]
    for kind in ErrorKind:
        spec = ERROR_KINDS[kind]
        advice = spec.advice[:1].lower() + spec.advice[1:]
        lines += ["", f"### {kind.value}", "", spec.meaning, "", *_listed(spec.details), f"- A model should: {advice}"]
    lines += [_COMMON, *_listed(POLICY_DETAILS), "", "Work on a remote side, for whoever must look there:", ""]
    lines += [*_listed(REMOTE_DETAILS), "", "A job whose tool asks a person:", "", *_listed(JOB_DETAILS)]
    lines += [_REASONS_HEAD, *table(("reason", "status", "retry after", "metadata", "when", "what to do"), _reasons())]
    lines += [
        _STARTS,
        *table(("reason", "when", "what to do"), ((code(r.name), r.meaning, r.advice) for r in StartReason)),
    ]
    return "\n".join(lines) + "\n"


def _overview(kind: ErrorKind) -> tuple[str, str, str]:
    spec = ERROR_KINDS[kind]
    return f"[`{kind.value}`](#{kind.value.lower()})", "yes" if spec.retryable else "no", spec.code.name


def _listed(details: Mapping[str, str]) -> Iterator[str]:
    for names, meaning in details.items():
        yield f"- {', '.join(map(code, names.split(', ')))}: {meaning}."


def _reasons() -> Iterator[tuple[str, ...]]:
    reasons: list[HubReason] = list(Reason)
    for reason in reasons:
        wait = "" if reason.retry_after_s is None else f"{reason.retry_after_s:g} s"
        metadata = ", ".join(map(code, sorted(reason.metadata)))
        yield code(reason.name), reason.code.name, wait, metadata, reason.meaning, reason.advice
