"""The gRPC client of the command line: one connection, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast

import click
import grpc
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub.v1.audit_service_pb2_grpc import AuditServiceStub
from toolhub.v1.credential_service_pb2_grpc import CredentialServiceStub
from toolhub.v1.job_service_pb2_grpc import JobServiceStub
from toolhub.v1.registry_service_pb2_grpc import RegistryServiceStub
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.cli.connection.channel import Endpoint, endpoint, tls_options, unreachable_text
from toolhub_service.cli.connection.hub_options import (
    BY_DEFAULT,
    BY_ENVIRONMENT,
    DEFAULT_ADDRESS,
    OPTIONS,
    TYPED,
    Given,
    plain,
)
from toolhub_service.cli.connection.lost_answers import REFUSALS, Sent, is_lost, lost_answer, lost_text
from toolhub_service.cli.terminal.output import EXIT_REFUSED
from toolhub_service.guards.foreign_text import on_one_line

_EXIT_UNREACHABLE = 3

ANSWER_TIMEOUT_S = 60.0

# Most records that the hub returns in one answer.
PAGE_MAX = 1_000

# Length of an ID made by the hub; a shorter one may be a prefix.
_ID_CHARS = 36
_SEVERAL_SHOWN = 5

_RANKS = {ParameterSource.COMMANDLINE: TYPED, ParameterSource.ENVIRONMENT: BY_ENVIRONMENT}

Credential = str | Callable[[], str] | None
"""An API key or a token, or a function that returns a currently valid one."""

Command = TypeVar("Command", bound=Callable[..., Any])
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Connection:
    """An open channel and the credential of every call."""

    hub: Endpoint
    channel: grpc.Channel
    credential: Credential
    timeout_s: float
    sent: Sent = field(default_factory=Sent)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of every call. Raises click.ClickException when the credential is unavailable."""
        key = self.credential() if callable(self.credential) else self.credential
        return (("authorization", f"Bearer {key}"),) if key else ()

    @property
    def approvals(self) -> ApprovalServiceStub:
        return ApprovalServiceStub(self.channel)

    @property
    def artifacts(self) -> ArtifactServiceStub:
        return ArtifactServiceStub(self.channel)

    @property
    def audit(self) -> AuditServiceStub:
        return AuditServiceStub(self.channel)

    @property
    def credentials(self) -> CredentialServiceStub:
        return CredentialServiceStub(self.channel)

    @property
    def jobs(self) -> JobServiceStub:
        return JobServiceStub(self.channel)

    @property
    def registry(self) -> RegistryServiceStub:
        return RegistryServiceStub(self.channel)

    @property
    def tools(self) -> ToolServiceStub:
        return ToolServiceStub(self.channel)

    def call(self, rpc: Callable[..., Answer], request: Message) -> Answer:
        """Return the answer of a unary RPC within the timeout. Raises grpc.RpcError."""
        self.sent.request = request
        return rpc(request, timeout=self.timeout_s, metadata=self.metadata)

    def pages(self, rpc: Callable[..., Answer], request: Any) -> Iterator[Answer]:
        """Yield the answers of a paged RPC, until the last page. Raises grpc.RpcError."""
        while True:
            page: Any = self.call(rpc, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def full_id(self, given: str, rpc: Callable[..., Any], request: Any, records: str, field: str) -> str:
        """Return the only ID with this prefix among the newest records, else the input.

        Raises UsageError, grpc.RpcError.

        `rpc` lists records newest first; `field` holds their ID.
        """
        # A whole id needs no listing, for which the caller may lack the right.
        if len(given) >= _ID_CHARS:
            return given
        request.page_size = PAGE_MAX
        known = [str(getattr(each, field)) for each in getattr(self.call(rpc, request), records)]
        fitting = [each for each in known if each.startswith(given)]
        # An id that is also a prefix of another one means itself.
        if given not in fitting and len(fitting) > 1:
            several = ", ".join(fitting[:_SEVERAL_SHOWN]) + (", …" if fitting[_SEVERAL_SHOWN:] else "")
            raise click.UsageError(f"`{given}` matches several IDs: {several}")
        return fitting[0] if len(fitting) == 1 else given

    def newest(self, rpc: Callable[..., Any], request: Any, records: str, count: int | None) -> tuple[list[Any], int]:
        """Return (the first `count` of the answers' field `records`, or all; how many match). Raises grpc.RpcError."""
        request.page_size = min(count or PAGE_MAX, PAGE_MAX)
        found: list[Any] = []
        total = 0
        for page in self.pages(rpc, request):
            found.extend(getattr(page, records))
            total = page.total_size
            if count is not None and len(found) >= count:
                break
        found = found[:count]
        # Records may have been removed while pages were read, and the total is never below the shown number.
        return found, max(total, len(found))


def connection_options(command: Command) -> Command:
    """Add --context, --address, --api-key, the options of TLS, and --timeout."""
    timeout = click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0, 86_400, min_open=True),
        default=ANSWER_TIMEOUT_S,
        show_default=True,
        help="Seconds to wait for the answer.",
    )
    return address_options(timeout(command), "--key")


def address_options(command: Command, *key_names: str) -> Command:
    """Add the same without --timeout, for a command in which --timeout means something else; --key likewise.

    The command receives them with those of the context in use.
    """
    wrapped = tls_options(_in_context(command), *key_names)
    for option in (
        click.option(
            "--api-key",
            envvar="TOOLHUB_API_KEY",
            help="API key or token (prefer the environment variable TOOLHUB_API_KEY).",
        ),
        click.option(
            "--address",
            envvar="TOOLHUB_ADDRESS",
            default=DEFAULT_ADDRESS,
            show_default=True,
            help="Address of the hub: HOST, HOST:PORT, https://HOST:PORT or unix:PATH; also TOOLHUB_ADDRESS.",
        ),
        click.option(
            "--context",
            "context_name",
            envvar="TOOLHUB_CONTEXT",
            shell_complete=_complete_context,
            help="Hub and credential by name (`toolhub context list`); also TOOLHUB_CONTEXT.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped


def _complete_context(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from toolhub_service.cli.connection.contexts import complete_context

    return complete_context(context, parameter, incomplete)


def _in_context(command: Command) -> Command:
    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        source = click.get_current_context().get_parameter_source
        given: Given = {name: (options[name], _RANKS.get(source(name), BY_DEFAULT)) for name in OPTIONS}  # type: ignore[arg-type]
        chosen = plain(given)
        if chosen is None:
            from toolhub_service.cli.connection.chosen_context import complete_options

            chosen = complete_options(given)
        return command(*arguments, **{**options, **chosen})

    return cast("Command", run)


@contextmanager
def connect(hub: Endpoint, credential: Credential = None, timeout_s: float = ANSWER_TIMEOUT_S) -> Iterator[Connection]:
    """Open a connection. A failed RPC ends the command with exit code 1 (refused by the hub) or 3 (not reached)."""
    channel = hub.open()
    connection = Connection(hub, channel, credential, timeout_s)
    try:
        yield connection
    except grpc.RpcError as error:
        raise explain_error(connection, error) from error
    finally:
        channel.close()


def connect_by_options(options: Mapping[str, Any]) -> AbstractContextManager[Connection]:
    """Open the connection that a command's options describe; `options` may hold others, too."""
    return connect(endpoint_of(options), options["api_key"], options.get("timeout_s", ANSWER_TIMEOUT_S))


def endpoint_of(options: Mapping[str, Any]) -> Endpoint:
    """Return the hub that a command's options describe. Raises ClickException for files that cannot be used."""
    files = {name: options[name] for name in ("ca_file", "cert_file", "key_file")}
    return endpoint(options["address"], tls=options["tls"], **files)


class HubUnreachable(click.ClickException):
    """The hub could not be reached."""

    exit_code = _EXIT_UNREACHABLE


class HubRefused(click.ClickException):
    """The hub answered and refused."""

    exit_code = EXIT_REFUSED


def status_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, str]:
    """Return (code, message, ErrorInfo reason or empty) of a failed RPC."""
    call: Any = error  # a stub raises an RpcError that is also a Call, which its types do not express
    return call.code(), call.details(), str(_info_of(error).reason)


def explain_error(connection: Connection, error: grpc.RpcError) -> click.ClickException:
    """Return the failed RPC as one message that says what to do next."""
    hub = connection.hub
    # The Python client waits for a hub before it sends anything; these are gRPC's words for why none was found.
    problem: str | None = getattr(error, "problem", None)
    if problem is not None:
        return HubUnreachable(unreachable_text(hub, on_one_line(problem)))
    code, details, reason = status_of(error)
    details = on_one_line(details)
    has_lost = is_lost(code, reason, error)
    if has_lost and connection.sent.changes:
        return lost_answer(hub.address, connection.sent, error)
    if has_lost and code is not grpc.StatusCode.DEADLINE_EXCEEDED:
        text = f"{lost_text(hub.address, code)} Nothing was changed by this command: run it again."
    elif code is grpc.StatusCode.UNAVAILABLE and not reason:
        text = unreachable_text(hub, details)
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED and not reason:
        text = f"{hub.address} did not answer in time. Allow more seconds with --timeout."
    elif code is grpc.StatusCode.UNAUTHENTICATED and "leave it out" in details:
        text = f"{details} Leave out --api-key and TOOLHUB_API_KEY."
    elif code is grpc.StatusCode.UNAUTHENTICATED and _problem_of(error) == "expired":
        text = (
            f"{details} With a context that has a login, tokens are refreshed: `toolhub context add`, `toolhub login`."
        )
    elif code is grpc.StatusCode.UNAUTHENTICATED:
        text = f"{details} Pass a key with --api-key or TOOLHUB_API_KEY; `toolhub keys create NAME` creates one."
    elif code is grpc.StatusCode.RESOURCE_EXHAUSTED and not reason:
        text = (
            "The request is larger than the hub accepts. Upload the large text with `toolhub artifacts put FILE` and "
            f'pass {{"$artifact": "ID"}} in its place. ({details})'
        )
    else:
        text = f"{details} [{reason or code.name}]" if details else code.name
    kind = HubRefused if code in REFUSALS else HubUnreachable
    return kind(text)


def _problem_of(error: grpc.RpcError) -> str:
    """Return what the hub says is wrong with a credential, such as `expired`; empty when it does not say."""
    return str(_info_of(error).metadata.get("problem", ""))


def _info_of(error: grpc.RpcError) -> error_details_pb2.ErrorInfo:
    """Return the first ErrorInfo of the status (google.rpc.Status, AIP-193); empty when there is none.

    The Python client reads the same in `toolhub_client.failures`, whose import costs more than a failed command.
    """
    call: Any = error
    info = error_details_pb2.ErrorInfo()
    for key, value in call.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info):
                    return info
    return info
