"""Reasons of RPC errors (`google.rpc.ErrorInfo.reason`): what each means, what to do, its gRPC code and metadata.

docs/errors.md, the contract's enum and the tables of the clients are made from it. A tool error that ends an RPC has
its kind as reason.
"""

from __future__ import annotations

from toolhub_service.domain.error_spec import Code, HubReason


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
        "Look whether client and hub speak the same contract.",
    )
    REQUEST_MISSING = (
        Code.INVALID_ARGUMENT,
        "The client ended its side of the RPC without a message.",
        "Send one message, as a generated client does.",
    )
    REQUEST_TOO_SLOW = (
        Code.RESOURCE_EXHAUSTED,
        "The request took longer than 30 seconds to come in, or more than one while others waited for its place.",
        "Send it again; send large content as an artifact.",
        "",
        1.0,
    )
    CREDENTIAL_MISSING = (
        Code.UNAUTHENTICATED,
        "No credential was sent that `auth.modes` knows.",
        "Send `authorization: Bearer thk_…` or `x-api-key`.",
    )
    CREDENTIAL_REFUSED = (
        Code.UNAUTHENTICATED,
        "The API key is unknown or was revoked.",
        "Have a new one made; after 20 refusals in a minute, RetryInfo says how long to wait.",
    )
    PRINCIPAL_UNKNOWN = (
        Code.PERMISSION_DENIED,
        "Neither a grant nor an entry of `roles` in the policy names the caller.",
        "An operator adds one.",
        "role, service",
    )
    ROLE_MISSING = (
        Code.PERMISSION_DENIED,
        (
            "The caller lacks the role that the service needs, or holds the role no longer with which the stream was "
            "opened."
        ),
        "An operator grants it under `roles` in the policy.",
        "role, service",
    )
    OVERLOADED = (
        Code.RESOURCE_EXHAUSTED,
        (
            "`server.max_in_flight` calls, or `server.max_watches` streams that follow something, are in flight in "
            "this process."
        ),
        "Wait as RetryInfo says, then try again.",
        "max_bytes",
        0.5,
    )
    WATCH_SHARE_TAKEN = (
        Code.RESOURCE_EXHAUSTED,
        "The caller has as many streams that follow something open as are free for all others of `server.max_watches`.",
        "Close some; follow several things with one, as WatchJobs, WatchApprovals and TailEvents do.",
        "max_watches, yours",
        1.0,
    )
    DRAINING = (
        Code.UNAVAILABLE,
        "This hub is leaving.",
        "Connect again; another replica answers. A watch goes on after the last sequence seen.",
        "",
        0.5,
    )
    CANCELLED = (
        Code.CANCELLED,
        "The client of WriteArtifact left before the artifact was whole; nothing was kept.",
        "Send it again.",
    )
    TOOL_NOT_FOUND = (Code.NOT_FOUND, "No such tool, or none that the caller could call.", "Search for it.", "tool")
    TOOL_QUARANTINED = (
        Code.FAILED_PRECONDITION,
        "The tool waits for an operator's decision, and is shown to operators alone until then.",
        "Use another tool; an operator looks at `toolhub pins list`.",
        "tool",
    )
    SOURCES_INVALID = (
        Code.FAILED_PRECONDITION,
        "sources.yaml, which a refresh looks at first, is not valid; nothing was read, and the sources there are stay.",
        "`toolhub sources check` names key and nearest known one.",
    )
    SOURCE_NOT_FOUND = (
        Code.NOT_FOUND,
        "No source of that name is configured.",
        "`toolhub sources list` names those there are.",
        "source",
    )
    SOURCE_NOT_CONFIGURED = (
        Code.FAILED_PRECONDITION,
        "No source that is configured runs such a tool, or its kind is configured, not registered; nothing was kept.",
        "Configure what the message names.",
        "source, tool",
    )
    TOOL_INVALID = (
        Code.INVALID_ARGUMENT,
        "A registered tool is not one that its source could offer, or one more than the 1,000 that it may have.",
        "Correct what the message names.",
        "tool",
    )
    PIN_NOT_FOUND = (
        Code.NOT_FOUND,
        "That digest of that tool was never seen.",
        "List the pins and decide one of them.",
        "source, tool",
    )
    PIN_UNREADABLE = (
        Code.FAILED_PRECONDITION,
        "What the store holds of a source's pins cannot be read; nothing of it may be called.",
        "Restore a backup, or remove the source's pins and decide anew.",
        "digest, source, tool",
    )
    ANSWER_UNFIT = (
        Code.INVALID_ARGUMENT,
        "The answer does not fit the question's schema; violations name the fields.",
        "Correct them, and decide again.",
    )
    NOTHING_TO_ANSWER = (
        Code.INVALID_ARGUMENT,
        "An answer came with a decision that answers no question.",
        "Decide without an answer.",
        "approval_id",
    )
    PAGE_SIZE_INVALID = (Code.INVALID_ARGUMENT, "page_size is negative.", "Send 0 or more.")
    PAGE_TOKEN_INVALID = (
        Code.INVALID_ARGUMENT,
        "The token is not ours or belongs to another question.",
        "Begin at the first page.",
    )
    CATALOG_CHANGED = (
        Code.FAILED_PRECONDITION,
        "The catalog changed between two pages of a search, and the ranking with it, or of GetSnapshot.",
        "Begin again, without a page_token.",
    )
    TOOL_NAME_INVALID = (
        Code.INVALID_ARGUMENT,
        "A name breaks the grammar `namespace/path.verb` or has more than 128 characters.",
        "Rename the tool.",
        "tool",
    )
    TOOL_NAME_RESERVED = (
        Code.PERMISSION_DENIED,
        "The namespace is `core`, or reads like it.",
        "Use another one.",
        "tool",
    )
    TOOL_NAME_CONFUSABLE = (
        Code.ALREADY_EXISTS,
        "The name differs from another one by case or separators only.",
        "Choose a name that reads differently.",
        "known, tool",
    )
    TOOL_EXISTS = (
        Code.ALREADY_EXISTS,
        "The name is taken, by a tool of the source or by a registered one.",
        "Replace a registered one with `upsert`, or choose another name.",
        "tool",
    )
    TOOL_SCHEMA_INVALID = (
        Code.INVALID_ARGUMENT,
        "A schema is no JSON Schema, leaves its document, or could cost without bound.",
        "Repair it at the `path` given.",
        "path, tool",
    )
    DIGEST_MISMATCH = (
        Code.INVALID_ARGUMENT,
        "The digest sent is not that of the definition sent, or not that of the bytes of an upload; nothing was kept.",
        "Leave it empty, or send the bytes again.",
        "expected, tool",
    )
    NOT_JSON = (Code.INVALID_ARGUMENT, "A field of a registered tool that must be a JSON object is none.", "Send one.")
    SEVERAL_WORKERS = (
        Code.FAILED_PRECONDITION,
        "A tool of a source would be taken away from one of several workers only.",
        "Leave it out in the configuration of its source.",
    )
    WATCH_LAGGED = (
        Code.RESOURCE_EXHAUSTED,
        "Approvals changed faster than the watcher took them.",
        "Watch again: it begins with all that are pending.",
    )
    TAIL_LAGGED = (
        Code.RESOURCE_EXHAUSTED,
        "Events came faster than the watcher took them.",
        "List from the last event seen, then watch again.",
    )
    AUDIT_UNREACHABLE = (
        Code.UNAVAILABLE,
        "The PostgreSQL that keeps the audit log cannot be reached; at the start it keeps the hub down.",
        "Try again; an operator must look at it.",
    )
    AUDIT_DAMAGED = (
        Code.INTERNAL,
        "The audit database cannot be read.",
        "Run `toolhub audit verify`; see [operations](operations.md#audit).",
    )
    APPROVAL_NOT_FOUND = (
        Code.NOT_FOUND,
        "No such approval, or not the caller's to see.",
        "Look at the id; ended ones are forgotten after `approvals.keep_s`.",
        "approval_id",
    )
    OWN_REQUEST = (
        Code.PERMISSION_DENIED,
        "Whoever asks, or is asked for, neither decides nor has the arguments revealed.",
        "Another approver has to.",
        "approval_id",
    )
    NOT_AMONG_APPROVERS = (
        Code.PERMISSION_DENIED,
        "The rule names who may decide, and the caller is none of them.",
        "One of those named has to.",
        "approval_id, rule_id",
    )
    ARGS_DIGEST_DIFFERS = (
        Code.FAILED_PRECONDITION,
        "The approval is for other arguments than the digest says that were shown.",
        "Look at it again, then decide.",
        "approval_id, args_digest",
    )
    ALREADY_DECIDED = (
        Code.FAILED_PRECONDITION,
        "It was decided, otherwise or by somebody else.",
        "Nothing; a decision stands.",
        "approval_id, state",
    )
    APPROVAL_WITHDRAWN = (
        Code.FAILED_PRECONDITION,
        "The job that asked has ended, mostly because it was cancelled; the message tells why.",
        "Nothing; there is nothing to decide any more.",
        "approval_id, state",
    )
    APPROVAL_ENDED = (
        Code.FAILED_PRECONDITION,
        "The arguments of an approval are revealed only while it is open.",
        "Nothing; the audit log has its summary.",
        "approval_id, state",
    )
    ARGUMENTS_TOO_LARGE = (
        Code.FAILED_PRECONDITION,
        "Arguments of more than 64 KiB are not revealed.",
        "Deny what must be read, and have it sent in smaller parts.",
        "approval_id, state",
    )
    ARGUMENTS_NOT_HERE = (
        Code.UNAVAILABLE,
        (
            "The arguments are kept, in memory, by the hub that asked; this is another, or was started again since, "
            "or had to make room."
        ),
        "Ask the hub that asked, have the caller send the same call again, or deny it.",
        "approval_id",
    )
    APPROVAL_EXPIRED = (
        Code.FAILED_PRECONDITION,
        "Nobody decided in time, which counts as no.",
        "The caller can ask anew.",
        "approval_id, state",
    )
    HEADER_MISSING = (
        Code.INVALID_ARGUMENT,
        "The first message of WriteArtifact is not the header.",
        "Send the header, then chunks.",
    )
    CHUNK_MISSING = (Code.INVALID_ARGUMENT, "A message after the header is no chunk.", "Send chunks only.")
    BAD_NAME = (
        Code.INVALID_ARGUMENT,
        "The name of an upload has folders or control characters.",
        "Send a plain file name, or none.",
    )
    BAD_MEDIA_TYPE = (Code.INVALID_ARGUMENT, "The media type of an upload is none.", "Send type/subtype, or nothing.")
    SIZE_MISMATCH = (
        Code.INVALID_ARGUMENT,
        "More or fewer bytes came than the header declared; nothing was kept.",
        "Send it again.",
    )
    ARTIFACT_TOO_LARGE = (
        Code.RESOURCE_EXHAUSTED,
        "The upload is larger than `artifacts.max_bytes`; nothing was kept.",
        "Split it.",
    )
    QUOTA_EXCEEDED = (
        Code.RESOURCE_EXHAUSTED,
        "The caller's artifacts would pass `artifacts.quota_bytes`; nothing was kept.",
        "Keep less, or wait until older ones expire.",
    )
    UPLOAD_NOT_FOUND = (
        Code.NOT_FOUND,
        "The process that answers holds no such upload: another has it, it has been held too long, or never was.",
        "Begin again, with offset_bytes 0.",
    )
    UPLOAD_OFFSET_WRONG = (
        Code.FAILED_PRECONDITION,
        "The upload does not go on at offset_bytes: more or fewer bytes have come, or it is over.",
        "Ask GetUpload and go on there.",
        "received_bytes",
    )
    UPLOAD_HEADER_INVALID = (
        Code.INVALID_ARGUMENT,
        "A header has an upload_id without size and digest, an offset without upload_id, or is not its upload's first.",
        "Declare size_bytes or sha256, and send the same header again.",
    )
    UPLOAD_TAKEN_OVER = (
        Code.ABORTED,
        "Another stream has gone on with the upload, or begun it anew.",
        "Nothing, where the other is yours; use an upload_id once.",
    )
    ARTIFACT_DAMAGED = (
        Code.DATA_LOSS,
        "Bytes of the artifact are missing, or are not those that its sha256 names.",
        "Use none of them; make or upload it again. An operator looks at the place of artifacts.",
    )
    OFFSET_PAST_END = (
        Code.OUT_OF_RANGE,
        "offset_bytes lies beyond the artifact's end.",
        "Read from 0 to its size.",
        "size_bytes",
    )
    INTERNAL = (Code.INTERNAL, "A defect.", "Look for `call_crashed` with the RPC's name in the log.")
    SOURCE_EXISTS = (
        Code.ALREADY_EXISTS,
        "Two sources have, but for case and separators, the same name; told as the state of the second.",
        "",
        "known, source",
    )
    SOURCE_NAME_RESERVED = (
        Code.PERMISSION_DENIED,
        "A source reads like the hub's own; told as its state.",
        "",
        "source",
    )
