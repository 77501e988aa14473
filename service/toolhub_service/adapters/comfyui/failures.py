"""Failures of jobs of ComfyUI tools.

    no server took it                          TOOL_UNAVAILABLE: certainly not run, the job waits
    the graph was refused for an argument      INVALID_INPUT with violations
    the graph was refused for anything else    UPSTREAM_ERROR: an operator must look
    a node failed                              EXECUTION_ERROR; out of memory BUDGET_EXCEEDED
    it ran, and what it was to leave is not there or not usable   EXECUTION_ERROR

A server's own text is truncated, redacted and without paths; its tracebacks and inputs are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from toolhub_service.adapters.comfyui.client import NoReply, Reply
from toolhub_service.adapters.comfyui.states import PromptStatus
from toolhub_service.adapters.comfyui.workflow.template import Output, Template
from toolhub_service.adapters.upstream import one_line, without_paths
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import STOPPED, ErrorKind, ToolFailure, Upstream, Violation, refuse
from toolhub_service.guards.secrets import Redact

WORDS_MAX_CHARS: Final = 500
_CHECKED_CHARS: Final = 4_000
_WORD_MAX_CHARS: Final = 128
_ERRORS_MAX: Final = 20
_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|outofmemory|can.?t allocate memory|cannot allocate memory|allocation on device|oom\b", re.IGNORECASE
)
_GATEWAYS: Final = {401, 403}
_KEYS_MAX: Final = 10
_LOOK_OR_REPEAT: Final = "Its output may still be on the server. Tell an operator, or call it again."
GONE_FROM_CACHE: Final = (
    "The server took this node from its cache, which names a file of an earlier run, so another call with the same "
    "arguments ends the same way: change them, or have an operator force a `filename_prefix` with `{job_id}` or empty "
    "the server's cache (POST /free)."
)


def quote_foreign(text: Any, redact: Redact, max_chars: int = WORDS_MAX_CHARS) -> str:
    """Return foreign text for handing on: redacted, on one line, without paths, truncated.

    In this order: a secret that was cut would not be recognized.
    """
    words = text if isinstance(text, str) else ""
    return one_line(without_paths(redact(words[:_CHECKED_CHARS])), max_chars)


def no_template(call: GrantedCall) -> ToolFailure:
    message = f"{call.spec.name} cannot be used now: its template is being reloaded. Try again."
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message)


def no_server(call: GrantedCall, why: Mapping[str, str]) -> ToolFailure:
    """`why`: a clause for each backend."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in why.items()) or "none can run it"
    message = f"No ComfyUI server accepted {call.spec.name} ({reasons}). Nothing runs. Try again later."
    return refuse(ErrorKind.TOOL_UNAVAILABLE, message, backends=dict(why))


def start_refusal(call: GrantedCall, template: Template, reply: Reply, redact: Redact) -> ToolFailure:
    """A start whose status says that nothing runs."""
    name, status = call.spec.name, reply.status
    if status == 429:
        message = f"The ComfyUI server accepts no more work for {name} now. Nothing runs. Try again later."
        return refuse(ErrorKind.RATE_LIMITED, message, retry_after_s=reply.retry_after_s or None)
    if status == 400 and reply.fields.get("node_errors"):
        return node_errors(call, template, reply.fields["node_errors"], redact)
    error = reply.fields.get("error")
    words = quote_foreign(error.get("message") if isinstance(error, Mapping) else reply.text, redact)
    what = "does not accept the hub's credentials (see `headers`)" if status in _GATEWAYS else f"answered {status}"
    message = (
        f"The ComfyUI server refused {name}: it {what}. Nothing runs. Use another tool, or tell an operator. The "
        f"server says: {words}"
    )
    upstream = Upstream(status=status, excerpt=words)
    return refuse(ErrorKind.UPSTREAM_ERROR, message, retryable=False, upstream=upstream, cause="REFUSED")


def node_errors(call: GrantedCall, template: Template, reported: Any, redact: Redact) -> ToolFailure:
    """The server rejects nodes, because of arguments or because of the template itself."""
    errors = [*_node_errors(reported, redact)][:_ERRORS_MAX]
    sources = {(each.target.node, each.target.input): each.source for each in template.bindings}
    sources |= {(each.target.node, each.target.input): each.source for each in template.seeds if each.source}
    violations = tuple(
        Violation(sources[node, name], kind, f"{class_type} (node {node}) refuses it: {quote_foreign(words, redact)}")
        for node, class_type, kind, name, words in errors
        if (node, name) in sources
    )
    nodes = [f"{class_type} (node {node}, input {name or '?'}): {quote_foreign(words, redact, 200)}" for
             node, class_type, _, name, words in errors]  # fmt: skip
    listed = "; ".join(nodes[:3]) or "it does not say which"
    if violations and len(violations) == len(errors):
        message = f"The ComfyUI server rejected arguments of {call.spec.name}. Correct them and call again. {listed}"
        return refuse(ErrorKind.INVALID_INPUT, message, violations=violations, node_errors=nodes)
    message = (
        f"The ComfyUI server rejected the graph of {call.spec.name}, not only arguments. Use another tool, or tell "
        f"an operator. {listed}"
    )
    return refuse(
        ErrorKind.UPSTREAM_ERROR,
        message,
        retryable=False,
        violations=violations,
        cause="NODE_ERRORS",
        node_errors=nodes,
    )


def upload_refusal(call: GrantedCall, pointer: str, why: str) -> ToolFailure:
    message = f"{call.spec.name} cannot take the artifact at `{pointer}`: {why}. Nothing runs."
    return refuse(ErrorKind.INVALID_INPUT, message, argument=pointer, cause="UPLOAD_REFUSED")


def node_failure(call: GrantedCall, seen: PromptStatus, redact: Redact) -> ToolFailure:
    """A node has failed."""
    error = seen.messages.get("execution_error", {})
    node, class_type, kind = (_word(error.get(key), redact) for key in ("node_id", "node_type", "exception_type"))
    full = error.get("exception_message")
    words = quote_foreign(full, redact)
    where = f"its node {node} ({class_type})" if node else "it"
    facts: dict[str, Any] = {"node": node, "node_class": class_type, "exception": kind}
    if _OUT_OF_MEMORY.search(f"{kind} {full if isinstance(full, str) else ''}"[:_CHECKED_CHARS]):
        message = (
            f"{call.spec.name} did not finish: {where} ran out of memory on the server. Request something smaller, "
            f"or try again when the server is less busy. The server says: {words}"
        )
        return refuse(ErrorKind.BUDGET_EXCEEDED, message, retryable=True, cause="OUT_OF_MEMORY", **facts)
    message = f"{call.spec.name} did not finish: {where} failed with {kind or 'an error'}. The server says: {words}"
    return refuse(ErrorKind.EXECUTION_ERROR, message, upstream=Upstream(status=0, excerpt=words), **facts)


def cancellation(call: GrantedCall, *, by_us: bool) -> ToolFailure:
    if by_us:
        return refuse(ErrorKind.CANCELLED, f"{call.spec.name} was stopped on its server, as requested.")
    message = (
        f"{call.spec.name} was interrupted on its server by somebody else. Ask its operator before you call it again."
    )
    return refuse(ErrorKind.CANCELLED, message, by="somebody else")


def overran(call: GrantedCall, max_runtime_s: float) -> ToolFailure:
    message = (
        f"{call.spec.name} ran for longer than the {max_runtime_s:g} s that its template allows, and was stopped "
        "on its server. Nothing runs any more. Request less, such as a smaller image or fewer steps, or have an "
        "operator raise `limits.max_runtime_s` of the template."
    )
    facts: dict[str, Any] = {"max_runtime_s": max_runtime_s, STOPPED: True}
    return refuse(ErrorKind.TIMEOUT, message, retryable=False, **facts)


def bad_output(
    call: GrantedCall, output: Output, cause: str, what: str, *, advice: str = _LOOK_OR_REPEAT, **facts: Any
) -> ToolFailure:
    """The run ended, and an output is not as declared. `what`: a clause."""
    message = f"{call.spec.name} ran, but its output `{output.name}` {what}. {advice}"
    return refuse(ErrorKind.EXECUTION_ERROR, message, cause=cause, output=output.name, node=output.node, **facts)


def no_such_output(call: GrantedCall, output: Output, node: Any, redact: Redact) -> ToolFailure:
    """The node has no output under the key that the sidecar declares; `node`: its outputs."""
    keys = [_word(key, redact) for key in list(node)[:_KEYS_MAX]] if isinstance(node, Mapping) else []
    listed = ", ".join(f"`{key}`" for key in keys) or "nothing"
    what = f"is missing: node {output.node} returned {listed}, not `{output.key}`"
    advice = (
        f"Another call ends the same way: an operator must correct `key` of the output to {listed}, or name another "
        "node."
        if keys
        else "Another call with the same arguments ends the same way: the node gave the server nothing to keep, or did "
        "so in an earlier run that is still in its cache. Change the arguments, or tell an operator."
    )
    return bad_output(call, output, "OUTPUT_MISSING", what, advice=advice, keys=keys)


def unclear(backend: str, silent: NoReply) -> str:
    """Return why the outcome is unknown, for RemoteUnclear."""
    return f"The server {backend} gave no usable response: {silent.reason}."


def _word(value: Any, redact: Redact) -> str:
    return quote_foreign(str(value) if isinstance(value, str | int) else "", redact, _WORD_MAX_CHARS)


def _node_errors(reported: Any, redact: Redact) -> list[tuple[str, str, str, str, str]]:
    """Return (node, class, type, input, message) of each error."""
    found = []
    for node, body in list(reported.items())[:_ERRORS_MAX] if isinstance(reported, Mapping) else ():
        listed = body.get("errors") if isinstance(body, Mapping) else None
        class_type = _word(body.get("class_type"), redact) if isinstance(body, Mapping) else ""
        for error in listed[:_ERRORS_MAX] if isinstance(listed, list) else ():
            if isinstance(error, Mapping):
                extra = error.get("extra_info")
                name = _word(extra.get("input_name"), redact) if isinstance(extra, Mapping) else ""
                words = f"{error.get('message', '')}: {error.get('details', '')}"
                found.append((_word(node, redact), class_type, _word(error.get("type"), redact), name, words))
    return found
