"""docs/errors.md: errors.yaml told together with what the code says, and refused where the two disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import code_facts
import yaml
from tables import NOTICE, code, table

from toolhub_service.domain.errors import ErrorKind
from toolhub_service.transport.status import EQUAL_STATUS, ERROR_DOMAIN

_HEAD = f"""# Errors

Every way in which a call or an RPC can fail, for those who write agents and clients.
{NOTICE.format(source="`domain/errors.py`, `transport/status.py` and `.ci/docs/errors.yaml`")}

There are two kinds of failure. *The RPC itself failed* (no credential, a malformed envelope, an overloaded hub): a
gRPC status other than OK with `google.rpc.ErrorInfo`; see [reasons](#reasons-of-rpc-errors). *The call was judged or
ran and did not succeed*: status OK and a `ToolResult` with `ok = false` and a `ToolError`:

- `kind`, below, and `message`: what happened and what to do differently, written for a model, without exception text
  or secrets;
- `retryable`: whether the same call, unchanged, may succeed later, and `retry_after` where the hub knows when;
- `violations`: every broken schema rule, by JSON Pointer; `details`: facts for repair; `upstream`: what a remote
  system said, redacted.

A refusal by policy (step `check_policy`) has `rule_id` and `policy_revision` in its details, and `remedy` where one
is known; only a plan that does not fit says `differs` instead. In a dry run the error stands at the step of the plan
that failed. *Retryable* below is the kind's own answer; one error may say otherwise. *Equal status* is what an RPC
error of the same meaning has.

## Kinds of tool errors
"""

_REASONS_HEAD = f"""
## Reasons of RPC errors

`ErrorInfo.domain` is `{ERROR_DOMAIN}`; branch on `reason`, never on the message. Where waiting helps, RetryInfo says
how long. A reason may also be the name of a kind above, with its equal status: an RPC that is no call met it.
"""


def page() -> str:
    told = yaml.safe_load((Path(__file__).parent / "errors.yaml").read_text(encoding="utf-8"))
    raised = code_facts.raised_kinds()
    reasons = code_facts.reasons()
    agree("kinds", set(told["kinds"]), {kind.value for kind in ErrorKind})
    agree("reasons", set(told["reasons"]) | set(told["starts"]), set(reasons))
    agree_on_details(told["kinds"])
    lines = [_HEAD, *table(("kind", "retryable", "equal status"), (_overview(kind, raised) for kind in ErrorKind))]
    for kind in ErrorKind:
        lines += ["", *_section(kind, told["kinds"][kind.value], raised)]
    lines += [_REASONS_HEAD, *table(_HEADINGS, _reason_rows(told["reasons"], reasons))]
    lines += ["", "## What keeps a hub from starting", "", _STARTS, ""]
    lines += table(("reason", "what to do"), ((code(name), text) for name, text in told["starts"].items()))
    return "\n".join(lines) + "\n"


_STARTS = (
    "`toolhub serve` prints the message and exits with 1. A store that cannot be opened or reached is told as "
    "[`TOOL_UNAVAILABLE`](#tool_unavailable)."
)
_HEADINGS = ("reason", "status", "retry after", "metadata", "when", "what to do")


def _overview(kind: ErrorKind, raised: Mapping[str, set[str]]) -> tuple[str, str, str]:
    note = "" if kind.value in raised else " (not raised yet)"
    name = f"[`{kind.value}`](#{kind.value.lower()}){note}"
    return name, "yes" if kind.retryable else "no", EQUAL_STATUS[kind].name


def _section(kind: ErrorKind, told: Mapping[str, Any], raised: Mapping[str, set[str]]) -> Iterator[str]:
    yield from (f"### {kind.value}", "")
    yield told["when"] if kind.value in raised else f"Not raised yet: kept for a later release. {told['when']}"
    yield ""
    for keys, meaning in told["details"].items():
        yield f"- {', '.join(code(key) for key in _split(keys))}: {meaning}."
    yield f"- A model should: {_lowered(told['model'])}"


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _reason_rows(told: Mapping[str, list[str]], reasons: Mapping[str, code_facts.Reason]) -> Iterator[tuple[str, ...]]:
    for name, (when, repair) in told.items():
        known = reasons[name]
        wait = f"{known.retry_after_s} s" if known.retry_after_s else ""
        metadata = ", ".join(map(code, sorted(known.metadata)))
        yield code(name), ", ".join(sorted(known.statuses)), wait, metadata, when, repair


def _split(keys: str) -> list[str]:
    return [key.strip() for key in keys.split(",")]


def agree(what: str, told: set[str], known: set[str]) -> None:
    if told != known:
        raise SystemExit(
            f"errors.yaml, {what}: describe {sorted(known - told)}; the code does not know {sorted(told - known)}"
        )


def agree_on_details(kinds: Mapping[str, Any]) -> None:
    """Every key that a refusal is seen to carry is told, and every key told is a word of the code."""
    seen, words = code_facts.detail_keys(), code_facts.words()
    for name, entry in kinds.items():
        told = {key for keys in entry["details"] for key in _split(keys)}
        agree(f"details of {name}", told, told | seen.get(name, set()))
        agree(f"details of {name}", told, told & words)
