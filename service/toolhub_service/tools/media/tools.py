"""core/media.send: a message, optionally with files, to a channel that an operator has configured.

A channel is a name and an Apprise URL; the URL is a secret that no model sees or chooses. Files are opened beneath the
workspace, or are the caller's artifacts, and are copied, so that exactly the checked bytes are sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import mimetypes
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from toolhub_service.aio.threads import raise_if_cancelled, to_thread
from toolhub_service.domain.artifact import OCTETS
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, Upstream, refuse
from toolhub_service.domain.errors.http_status import Processing, processing_of
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import (
    NETWORK,
    SEND_MESSAGE,
    Annotations,
    ArgumentRole,
    CostHints,
    Example,
    GuardedArgument,
    ToolLimits,
)
from toolhub_service.guards.paths import check_path
from toolhub_service.sandbox.child import Program
from toolhub_service.sandbox.process import run_process
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.files.values import FilePath, check_size
from toolhub_service.tools.media.sender import sender_argv
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

FILES_MAX: Final = 10
FILE_BYTES: Final = 20 * 1024 * 1024
MESSAGE_CHARS: Final = 20_000
EXTENSIONS: Final = tuple(
    "png jpg jpeg gif bmp webp pdf doc docx xls xlsx ppt pptx txt zip rar 7z mp3 mp4 avi mov json xml csv md".split()
)
"""File types that a channel accepts unless the operator names others."""

_ANSWER_BYTES: Final = 4_096
# Variables that requests and TLS read; the sender gets no others of the hub's environment.
_ENVIRONMENT: Final = frozenset(
    {
        *("PATH", "LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    }
)


class MediaChannel(msgspec.Struct, frozen=True):
    """One configured channel."""

    name: str
    url: Callable[[], str]
    """Returns the Apprise URL, known to the redactor. Raises ValueError, which says why it is not available without
    quoting it."""
    takes_files: bool = True
    extensions: frozenset[str] = frozenset(EXTENSIONS)
    """Lower case, without the dot."""

    def problem(self) -> str:
        """Return why the channel cannot be used now; empty when it can."""
        try:
            return "" if "://" in self.url() else f"channel {self.name}: what `url` names is no Apprise URL"
        except ValueError as missing:
            return f"channel {self.name}: {missing}"


class _Copy(msgspec.Struct, frozen=True):
    path: str
    name: str
    size_bytes: int
    sha256: str


class MediaSend(Tool["MediaSend.In", "MediaSend.Out"]):
    name = "core/media.send"
    description = (
        "Send a message, with files if needed, to people through a channel that the operator has configured. Not for "
        "web requests: use core/http.request for those. A sent message cannot be taken back."
    )
    tags = ("message", "notify", "send", "media", "email", "chat")
    capabilities = frozenset({SEND_MESSAGE, NETWORK})
    annotations = Annotations(open_world=True)
    cost = CostHints(latency_ms_p50=2_000, latency_ms_p95=20_000)
    limits = ToolLimits(timeout_s=60.0)
    guarded = (GuardedArgument("filePaths", ArgumentRole.PATH_READ),)
    examples = (
        Example("Send a report", {"message": "The report of this week.", "filePaths": ["report.pdf", "chart.png"]}),
    )

    class In(ToolInput, frozen=True):
        message: Annotated[str, Meta(description="Plain text.", min_length=1, max_length=MESSAGE_CHARS)]
        title: Annotated[str, Meta(description="Subject line, where the channel has one.", max_length=250)] = ""
        channel: Annotated[
            str, Meta(description="Name of a configured channel; may be left out when there is one.", max_length=64)
        ] = ""
        file_paths: Annotated[
            tuple[FilePath, ...],
            Meta(description="Files of the workspace to attach, 20 MB each.", max_length=FILES_MAX),
        ] = ()
        artifact_ids: Annotated[
            tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...],
            Meta(description="Artifacts to attach, 20 MB each; 10 with the files.", max_length=FILES_MAX),
        ] = ()

    class File(ToolOutput, frozen=True):
        name: str
        bytes: int
        sha256: str

    class Out(ToolOutput, frozen=True):
        delivered: Annotated[bool, Meta(description="The channel's server has accepted it.")]
        channel: str
        message_bytes: int
        files: tuple[MediaSend.File, ...]

    def __init__(self, channels: Sequence[MediaChannel] = ()) -> None:
        self._channels: Mapping[str, MediaChannel] = {channel.name: channel for channel in channels}

    def full_description(self) -> str:
        return f"{self.description} Channels: {', '.join(self._channels)}." if self._channels else self.description

    def unavailable_reason(self) -> str:
        if not self._channels:
            return "no channel is configured: add one to `channels` of the settings, {name: team, url: {env: VARIABLE}}"
        if find_spec("apprise") is None:
            return "Apprise is not installed: toolhub extras install media"
        problems = [channel.problem() for channel in self._channels.values()]
        return "; ".join(problems) if all(problems) else ""

    def upstream(self, args: In) -> str:
        return f"channel:{args.channel or next(iter(self._channels), '')}"

    def touches(self, args: In) -> Sequence[str]:
        return args.file_paths

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        channel = self._channel(args)
        names = [check_path(path).rpartition("/")[2] for path in args.file_paths]
        self._check_files(channel, [*names], len(args.file_paths) + len(args.artifact_ids))
        for path in args.file_paths:
            with context.workspace.open_read(path) as file:
                check_size(file.size_bytes, FILE_BYTES, f'"{path}"')
        files = [f'"{path}"' for path in args.file_paths] + [f"artifact {id}" for id in args.artifact_ids]
        attached = f" with {', '.join(files)}" if files else ""
        return (f"Send a message of {len(args.message.encode()):,} bytes through channel {channel.name}{attached}.",)

    async def run(self, args: In, context: ToolContext) -> Out:
        channel = self._channel(args)
        try:
            url = channel.url()
        except ValueError as missing:
            reason = str(missing)
            message = f"Channel {channel.name} has no URL now. Use another channel, or tell the operator."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False, reason=reason) from missing
        # The number is checked before any file is copied; names are checked one by one below.
        self._check_files(channel, [], len(args.file_paths) + len(args.artifact_ids))
        folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="toolhub-send-")
        try:
            # Copies, so that the same bytes are checked, hashed and sent, whatever other processes write meanwhile.
            copies = await self._copies(args, channel, Path(folder), context)
            await _send(url, channel, args, copies, folder, context.deadline_s)
        finally:
            await to_thread(lambda _: shutil.rmtree(folder, ignore_errors=True))
        size_bytes = len(args.message.encode())
        context.proves(
            EvidenceType.TOOL,
            f"channel:{channel.name}",
            f"the server of channel {channel.name} accepted {size_bytes} bytes and {len(copies)} files",
            sha256=hashlib.sha256(args.message.encode()).hexdigest(),
        )
        for copy in copies:
            context.proves(EvidenceType.FILE, copy.name, f"sent, {copy.size_bytes} bytes", sha256=copy.sha256)
        files = tuple(self.File(name=copy.name, bytes=copy.size_bytes, sha256=copy.sha256) for copy in copies)
        return self.Out(delivered=True, channel=channel.name, message_bytes=size_bytes, files=files)

    def _channel(self, args: In) -> MediaChannel:
        if not args.channel and len(self._channels) == 1:
            return next(iter(self._channels.values()))
        channel = self._channels.get(args.channel)
        if channel is None:
            message = f"Name one of the configured channels: {', '.join(self._channels)}."
            raise refuse(ErrorKind.INVALID_INPUT, message, field="channel")
        return channel

    def _check_files(self, channel: MediaChannel, names: Sequence[str], count: int) -> None:
        if count > FILES_MAX:
            message = f"A message takes {FILES_MAX} files at most. Send the rest in another one."
            raise refuse(ErrorKind.INVALID_INPUT, message, field="filePaths")
        if count and not channel.takes_files:
            message = f"Channel {channel.name} takes no files. Send the message without, or use another channel."
            raise refuse(ErrorKind.INVALID_INPUT, message, field="filePaths")
        for name in names:
            if extension_of(name) not in channel.extensions:
                known = ", ".join(sorted(channel.extensions))
                message = f'"{name}" is of a type that channel {channel.name} does not take. It takes: {known}.'
                raise refuse(ErrorKind.INVALID_INPUT, message, field="filePaths")

    async def _copies(self, args: In, channel: MediaChannel, folder: Path, context: ToolContext) -> list[_Copy]:
        """Copy what will be sent into the call's own folder."""
        names = [check_path(path).rpartition("/")[2] for path in args.file_paths]
        self._check_files(channel, names, len(names))
        copies = []
        for index, path in enumerate(args.file_paths):
            taken = partial(_copy_attachment, context, path, names[index], folder / str(index))
            copies.append(await to_thread(taken))
        for index, artifact_id in enumerate(args.artifact_ids, len(copies)):
            copies.append(await self._take_artifact(artifact_id, channel, folder / str(index), context))
        return copies

    async def _take_artifact(self, id: str, channel: MediaChannel, path: Path, context: ToolContext) -> _Copy:
        if context.artifact_service is None:
            raise refuse(ErrorKind.NOT_FOUND, "The hub keeps no artifacts. Attach a file of the workspace.")
        artifact = await context.artifact_service.open(context.principal_id, id)
        name = (artifact.name or f"artifact{mimetypes.guess_extension(artifact.media_type) or ''}").rpartition("/")[2]
        self._check_files(channel, [name], 1)
        check_size(artifact.size_bytes, FILE_BYTES, f"artifact {id}")
        with await asyncio.to_thread(path.open, "xb") as copy:
            async for chunk in context.artifact_service.read(artifact):
                await asyncio.to_thread(copy.write, chunk)
        return _Copy(str(path), name, artifact.size_bytes, artifact.sha256)


def extension_of(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""


def _copy_attachment(context: ToolContext, path: str, name: str, destination: Path, stop: Event) -> _Copy:
    """Copy one file of the workspace. Runs in a thread."""
    size_bytes = 0
    sha256 = hashlib.sha256()
    with context.workspace.open_read(path) as file, destination.open("xb") as copy:
        check_size(file.size_bytes, FILE_BYTES, f'"{path}"')
        for chunk in file.chunks(stop):
            size_bytes += len(chunk)
            sha256.update(chunk)
            copy.write(chunk)
    # After the copying: the plan showed a state of the file, and the copy must match it.
    context.workspace.confirm(path, stop)
    raise_if_cancelled(stop)
    return _Copy(str(destination), name, size_bytes, sha256.hexdigest())


async def _send(
    url: str, channel: MediaChannel, args: MediaSend.In, copies: Sequence[_Copy], folder: str, deadline_s: float
) -> None:
    """Return when the channel's server has accepted everything. Raises ToolFailure."""
    files = [
        {"path": copy.path, "name": copy.name, "media_type": mimetypes.guess_type(copy.name)[0] or OCTETS}
        for copy in copies
    ]
    given = json.dumps({"url": url, "title": args.title, "message": args.message, "files": files}).encode()
    environment = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT} | {"HOME": folder}
    program = Program(sender_argv(), environment, working_directory=folder, has_input=True)
    try:
        finished = await run_process(
            program, deadline_s=deadline_s, keep_bytes=_ANSWER_BYTES, on_output=lambda *_: None, given=given
        )
    except OSError as error:
        message = "The process that sends could not be started, so nothing was sent. Try again."
        raise refuse(ErrorKind.EXECUTION_ERROR, message, retryable=True) from error
    if finished.timed_out:
        message = f"Channel {channel.name} did not answer before the deadline; part of it may have been sent."
        raise refuse(ErrorKind.TIMEOUT, message)
    try:
        answer = json.loads(finished.stdout.kept)
    except ValueError as broken:
        raise _unclear(channel, "the process that sent it ended without a word") from broken
    if not answer["delivered"]:
        raise _delivery_failure(channel, answer)


def _delivery_failure(channel: MediaChannel, answer: Mapping[str, Any]) -> ToolFailure:
    status = answer["status"]
    # Checked first: Apprise reports one failure for a message in parts, some of which may have arrived.
    if answer["accepted"]:
        return _unclear(channel, "a part was accepted before the rest failed")
    if answer["unclear"]:
        return _unclear(channel, "no answer came")
    if answer["problem"] == "url":
        message = f"The URL of channel {channel.name} is not one that Apprise understands. Use another channel."
        reason = f"channel {channel.name}: correct what its `url` names"
        return refuse(ErrorKind.TOOL_UNAVAILABLE, message, retryable=False, reason=reason)
    if answer["protocol"] == "HTTP" and processing_of(status) is Processing.UNKNOWN:
        return _unclear(channel, f"a gateway answered with status {status}")
    if status:
        passes = (
            processing_of(status) is not Processing.ANSWERED if answer["protocol"] == "HTTP" else 400 <= status < 500
        )
        what = "Nothing was delivered. Wait and try again." if passes else "Nothing was delivered; tell the operator."
        message = f"The server of channel {channel.name} refused the message ({answer['protocol']} {status}). {what}"
        return refuse(ErrorKind.UPSTREAM_ERROR, message, retryable=passes, upstream=Upstream(status))
    if answer["unreached"]:
        message = f"The server of channel {channel.name} could not be reached, so nothing was sent. Try again later."
        return refuse(ErrorKind.NETWORK_ERROR, message)
    message = f"Channel {channel.name} did not deliver the message. Use another channel, or tell the operator."
    return refuse(ErrorKind.UPSTREAM_ERROR, message, retryable=False)


def _unclear(channel: MediaChannel, why: str) -> ToolFailure:
    message = (
        f"Nobody can tell whether channel {channel.name} delivered the message: {why}. Ask those who should have got "
        "it before sending it again."
    )
    return refuse(ErrorKind.OUTCOME_UNKNOWN, message, cause="UPSTREAM_ERROR")


def media_tools(channels: Sequence[MediaChannel]) -> list[Tool[Any, Any]]:
    return [MediaSend(channels)]
