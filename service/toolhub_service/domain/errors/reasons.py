"""Reasons of RPC errors (`google.rpc.ErrorInfo.reason`): what each means, what to do, its gRPC code and metadata.

docs/errors.md, the contract's enum and the tables of the clients are made from it. A tool error that ends an RPC has
its kind as reason. To find where one is raised, search for `Reason.NAME`.
"""

from __future__ import annotations

from toolhub_service.domain.errors.spec import Code, HubReason


class Reason(HubReason):
    """Of RPCs, and of sources that cannot be opened."""

    MALFORMED_REQUEST = (
        Code.INVALID_ARGUMENT,
        "The envelope breaks the contract's rules; BadRequest lists field and rule.",
        "Correct the fields.",
    )
    UNREADABLE_REQUEST = (
        Code.INVALID_ARGUMENT,
        "The request is not a message of the contract: its bytes cannot be parsed.",
        "Check that client and hub use the same version of the contract.",
    )
    REQUEST_MISSING = (
        Code.INVALID_ARGUMENT,
        "The client closed its side of the RPC without sending a request.",
        "Send one message, as a generated client does.",
    )
    REQUEST_TOO_SLOW = (
        Code.RESOURCE_EXHAUSTED,
        "The request took longer than 30 seconds to arrive, or longer than one second while other requests waited.",
        "Send it again. Send large content as an artifact.",
        "",
        1.0,
    )
    CREDENTIAL_MISSING = (
        Code.UNAUTHENTICATED,
        "The request has no credential that `auth.modes` accepts.",
        "Send `authorization: Bearer thk_…` or `x-api-key`.",
    )
    CREDENTIAL_REFUSED = (
        Code.UNAUTHENTICATED,
        "The API key is unknown or was revoked, or the token is not accepted; the message says why.",
        (
            "Ask an operator for a new key, or the issuer for a new token. After 20 refusals in a minute, RetryInfo "
            "says how long to wait."
        ),
        "problem",
    )
    ISSUER_UNREACHABLE = (
        Code.UNAVAILABLE,
        "The keys of the token's issuer cannot be fetched, and those fetched before are too old to be used.",
        "Wait as RetryInfo says, then try again. An operator asks `toolhub doctor` why.",
        "",
        2.0,
    )
    SCOPE_MISSING = (
        Code.PERMISSION_DENIED,
        "The token holds, and lacks a scope that its issuer's `required_scopes` lists.",
        "Ask the issuer for a token with the scope.",
        "scope",
    )
    PRINCIPAL_UNKNOWN = (
        Code.PERMISSION_DENIED,
        "Neither a grant nor an entry of `roles` in the policy names the caller.",
        "Ask an operator to add one.",
        "role, service",
    )
    ROLE_MISSING = (
        Code.PERMISSION_DENIED,
        ("The caller lacks the role that the service requires, or lost the role while its stream was open."),
        "Ask an operator to grant it under `roles` in the policy.",
        "role, service",
    )
    OVERLOADED = (
        Code.RESOURCE_EXHAUSTED,
        (
            "This process already has `server.max_in_flight` calls in flight, or `server.max_watches` watch "
            "streams open, or the caller's tenant has its share of them, or large requests use all memory for them."
        ),
        "Wait as RetryInfo says, then try again.",
        "max_bytes, max_in_flight, max_watches, yours",
        0.25,
    )
    WATCH_SHARE_TAKEN = (
        Code.RESOURCE_EXHAUSTED,
        "The caller has as many watch streams open as are left of `server.max_watches` for all other callers.",
        "Close some. Follow several objects with one stream: WatchJobs, WatchApprovals, TailEvents.",
        "max_watches, yours",
        1.0,
    )
    DRAINING = (
        Code.UNAVAILABLE,
        "This hub is shutting down.",
        "Reconnect to another replica. Resume a watch with the last sequence seen.",
        "",
        0.5,
    )
    CANCELLED = (
        Code.CANCELLED,
        "The client of WriteArtifact disconnected before the artifact was complete. Nothing was stored.",
        "Send it again.",
    )
    TOOL_NOT_FOUND = (
        Code.NOT_FOUND,
        "The tool does not exist, or the caller may not call it.",
        "Search for a tool.",
        "tool",
    )
    FACE_NOT_FOUND = (
        Code.INVALID_ARGUMENT,
        "The metadata entry `toolhub-face` names a face that the hub does not have.",
        "Send `countbot` or `local-tools`, or leave the entry out.",
    )
    TOOL_QUARANTINED = (
        Code.FAILED_PRECONDITION,
        "The tool's definition awaits an operator's decision. Until then only operators can see it.",
        "Use another tool. Operators: see `toolhub pins list`.",
        "tool",
    )
    SOURCES_INVALID = (
        Code.FAILED_PRECONDITION,
        "sources.yaml is invalid, so the refresh was refused. The running sources are unchanged.",
        "Run `toolhub sources check`; it names the invalid key and the nearest valid one.",
    )
    SOURCE_NOT_FOUND = (
        Code.NOT_FOUND,
        "No source has that name.",
        "Take a name from `toolhub sources list`.",
        "source",
    )
    SOURCE_NOT_CONFIGURED = (
        Code.FAILED_PRECONDITION,
        (
            "No configured source can run such a tool, or tools of this kind come from configuration only. Nothing was "
            "stored."
        ),
        "Configure the source that the message names.",
        "source, tool",
    )
    TOOL_INVALID = (
        Code.INVALID_ARGUMENT,
        "The tool is not valid for its source, or the source already has 1,000 registered tools.",
        "Correct what the message names.",
        "tool",
    )
    PIN_NOT_FOUND = (
        Code.NOT_FOUND,
        "The tool has no recorded definition with this digest.",
        "Take tool and digest from `toolhub pins list`.",
        "source, tool",
    )
    PIN_UNREADABLE = (
        Code.FAILED_PRECONDITION,
        "The stored pins of the source cannot be read, so none of its tools may be called.",
        "Restore a backup, or remove the source's pins and decide again.",
        "digest, source, tool",
    )
    ANSWER_UNFIT = (
        Code.INVALID_ARGUMENT,
        "The answer does not match the question's schema; `violations` names the fields.",
        "Correct them, and decide again.",
    )
    NOTHING_TO_ANSWER = (
        Code.INVALID_ARGUMENT,
        "The decision carries an answer, but the approval asks no question.",
        "Send the decision without an answer.",
        "approval_id",
    )
    PAGE_SIZE_INVALID = (Code.INVALID_ARGUMENT, "page_size is negative.", "Send 0 or more.")
    PAGE_TOKEN_INVALID = (
        Code.INVALID_ARGUMENT,
        "The token was not issued by this hub, or belongs to a request with other parameters.",
        "Start again from the first page.",
    )
    CATALOG_CHANGED = (
        Code.FAILED_PRECONDITION,
        "The catalog changed between two pages of SearchTools or GetSnapshot.",
        "Start again without a page_token.",
    )
    TOOL_NAME_INVALID = (
        Code.INVALID_ARGUMENT,
        "A tool name does not match `namespace/path.verb`, or has more than 128 characters.",
        "Rename the tool.",
        "tool",
    )
    TOOL_NAME_RESERVED = (
        Code.PERMISSION_DENIED,
        "The namespace is `core`, or looks like it.",
        "Use another namespace.",
        "tool",
    )
    TOOL_NAME_CONFUSABLE = (
        Code.ALREADY_EXISTS,
        "The name differs from an existing one only in case or separators.",
        "Choose a clearly different name.",
        "known, tool",
    )
    TOOL_EXISTS = (
        Code.ALREADY_EXISTS,
        "A tool of the source, or a registered tool, already has this name.",
        "Set `upsert` to replace a registered tool, or choose another name.",
        "tool",
    )
    TOOL_SCHEMA_INVALID = (
        Code.INVALID_ARGUMENT,
        "A schema is not valid JSON Schema, refers outside its document, or could take unbounded time to validate.",
        "Fix the schema at `path`.",
        "path, tool",
    )
    DIGEST_MISMATCH = (
        Code.INVALID_ARGUMENT,
        "The digest does not match the definition, or the uploaded bytes. Nothing was stored.",
        "Leave the digest of a definition empty; send an upload again.",
        "expected, tool",
    )
    NOT_JSON = (
        Code.INVALID_ARGUMENT,
        "A field of a registered tool must be a JSON object and is not.",
        "Send a JSON object.",
    )
    SEVERAL_WORKERS = (
        Code.FAILED_PRECONDITION,
        "Removing a tool of a source would affect only one of several workers.",
        "Exclude the tool in the configuration of its source.",
    )
    WATCH_LAGGED = (
        Code.RESOURCE_EXHAUSTED,
        "Approvals changed faster than the client read them.",
        "Watch again; the stream starts with all pending approvals.",
    )
    TAIL_LAGGED = (
        Code.RESOURCE_EXHAUSTED,
        "Events arrived faster than the client read them.",
        "List events from the last one seen, then tail again.",
    )
    AUDIT_UNREACHABLE = (
        Code.UNAVAILABLE,
        "The PostgreSQL server of the audit log cannot be reached. A hub does not start without it.",
        "Try again. If it persists, an operator must check the server.",
    )
    AUDIT_DAMAGED = (
        Code.INTERNAL,
        "The audit database cannot be read.",
        "Run `toolhub audit verify`; see [secure](secure.md#audit).",
    )
    APPROVAL_NOT_FOUND = (
        Code.NOT_FOUND,
        "The approval does not exist, or the caller may not see it.",
        "Check the id. Ended approvals are deleted after `approvals.keep_s`.",
        "approval_id",
    )
    OWN_REQUEST = (
        Code.PERMISSION_DENIED,
        "You cannot approve your own request or reveal its arguments; the same holds for whom it was made for.",
        "Another approver must decide.",
        "approval_id",
    )
    NOT_AMONG_APPROVERS = (
        Code.PERMISSION_DENIED,
        "The rule lists who may decide, and the caller is not listed.",
        "One of the listed approvers must decide.",
        "approval_id, rule_id",
    )
    ARGS_DIGEST_DIFFERS = (
        Code.FAILED_PRECONDITION,
        "args_digest does not match the arguments of the approval.",
        "Review the approval again, then decide.",
        "approval_id, args_digest",
    )
    ALREADY_DECIDED = (
        Code.FAILED_PRECONDITION,
        "The approval was already decided: the other way, or by somebody else.",
        "Nothing. A decision is final.",
        "approval_id, state",
    )
    APPROVAL_WITHDRAWN = (
        Code.FAILED_PRECONDITION,
        "The job that requested approval has ended; the message says why.",
        "Nothing. There is nothing left to decide.",
        "approval_id, state",
    )
    APPROVAL_ENDED = (
        Code.FAILED_PRECONDITION,
        "Arguments can be revealed only while the approval is open.",
        "Nothing. The audit log has a summary.",
        "approval_id, state",
    )
    ARGUMENTS_TOO_LARGE = (
        Code.FAILED_PRECONDITION,
        "The arguments are larger than 64 KiB, the most that can be revealed.",
        "Deny the request and ask for smaller parts.",
        "approval_id, state",
    )
    ARGUMENTS_NOT_HERE = (
        Code.UNAVAILABLE,
        (
            "Only the hub process that took the request holds its arguments, in memory. This is another process, "
            "or it restarted, or dropped them to free memory."
        ),
        "Ask that process, have the caller send the same call again, or deny it.",
        "approval_id",
    )
    APPROVAL_EXPIRED = (
        Code.FAILED_PRECONDITION,
        "Nobody decided in time, which counts as a denial.",
        "The caller can request approval again.",
        "approval_id, state",
    )
    HEADER_MISSING = (
        Code.INVALID_ARGUMENT,
        "The first message of WriteArtifact is not the header.",
        "Send the header, then chunks.",
    )
    CHUNK_MISSING = (Code.INVALID_ARGUMENT, "A message after the header is not a chunk.", "Send chunks only.")
    BAD_NAME = (
        Code.INVALID_ARGUMENT,
        "The name of an upload contains folders or control characters.",
        "Send a plain file name, or none.",
    )
    BAD_MEDIA_TYPE = (
        Code.INVALID_ARGUMENT,
        "The media type of an upload is not a valid media type.",
        "Send type/subtype, or leave it empty.",
    )
    SIZE_MISMATCH = (
        Code.INVALID_ARGUMENT,
        "The number of bytes differs from the size in the header. Nothing was stored.",
        "Send it again.",
    )
    ARTIFACT_TOO_LARGE = (
        Code.RESOURCE_EXHAUSTED,
        "The upload is larger than `artifacts.max_bytes`. Nothing was stored.",
        "Split it.",
    )
    QUOTA_EXCEEDED = (
        Code.RESOURCE_EXHAUSTED,
        "Artifacts would exceed what `limit` names: a bound, or the reserve of the disk. Nothing was stored.",
        "Delete artifacts, or wait until older ones expire.",
        "limit, quota_bytes, used_bytes, quota, used, cause, free_bytes, reserve_bytes, errno",
    )
    UPLOAD_NOT_FOUND = (
        Code.NOT_FOUND,
        "This hub process does not have the upload: another process has it, it expired, or it never existed.",
        "Start again with offset_bytes 0.",
    )
    UPLOAD_OFFSET_WRONG = (
        Code.FAILED_PRECONDITION,
        "offset_bytes differs from the number of bytes received, or the upload is complete.",
        "Call GetUpload and continue at received_bytes.",
        "received_bytes",
    )
    UPLOAD_HEADER_INVALID = (
        Code.INVALID_ARGUMENT,
        (
            "The header has an upload_id without size and digest, or an offset without upload_id, or differs from the "
            "upload's first header."
        ),
        "Declare size_bytes or sha256, and send the same header again.",
    )
    UPLOAD_TAKEN_OVER = (
        Code.ABORTED,
        "Another stream continued the upload or started it again.",
        "Nothing, if the other stream is yours. Use each upload_id for one upload only.",
    )
    ARTIFACT_DAMAGED = (
        Code.DATA_LOSS,
        "Bytes of the artifact are missing, or do not match its sha256.",
        "Discard them; create or upload the artifact again. An operator must check the artifact store.",
    )
    OFFSET_PAST_END = (
        Code.OUT_OF_RANGE,
        "offset_bytes is beyond the end of the artifact.",
        "Read from 0 to its size.",
        "size_bytes",
    )
    CREDENTIAL_NOT_FOUND = (
        Code.NOT_FOUND,
        "The source takes no such credentials of callers, or there is none.",
        "See `toolhub credentials list`, and `auth.per_user` of the source.",
    )
    LOGIN_REFUSED = (
        Code.FAILED_PRECONDITION,
        "A login at a source's authorization server failed, or the value cannot be kept; the message says why.",
        "Begin the login again.",
    )
    INTERNAL = (Code.INTERNAL, "A defect in the hub.", "Search the log for `call_crashed` with the name of the RPC.")
    SOURCE_EXISTS = (
        Code.ALREADY_EXISTS,
        "Two source names differ only in case or separators; reported as the state of the second source.",
        "",
        "known, source",
    )
    SOURCE_NAME_RESERVED = (
        Code.PERMISSION_DENIED,
        "The name of a source looks like one of the hub's own; reported as the state of the source.",
        "",
        "source",
    )
