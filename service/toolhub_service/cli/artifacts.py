"""`toolhub artifacts …`: upload, download and show artifacts."""

from __future__ import annotations

import mimetypes
import re
from pathlib import Path
from typing import Any

import click

from toolhub.v1 import artifact_pb2
from toolhub.v1 import artifact_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
from toolhub_service.cli.artifact_transfer import download_to_file, download_to_stdout, upload
from toolhub_service.cli.client import connected_by, connection_options
from toolhub_service.cli.output import json_option, message_as_json, print_json, print_pairs, wants_json
from toolhub_service.cli.root import SuggestingGroup

_SAFE_NAME = re.compile(r"[^./\\\x00-\x1f-][^/\\\x00-\x1f]*")
"""File names that are neither hidden nor look like an option."""


@click.group(cls=SuggestingGroup)
def artifacts() -> None:
    """Upload, download and show artifacts: large inputs and outputs that calls refer to."""


@artifacts.command()
@click.argument("file")
@click.option("--name", help="Name of the artifact; default: the name of FILE.")
@click.option("--media-type", help="Media type such as text/csv; default: guessed from the name.")
@click.option("--task-id", default="", help="ID of the task that it belongs to.")
@json_option
@connection_options
def put(file: str, name: str | None, media_type: str | None, task_id: str, as_json: bool, **options: Any) -> None:
    """Upload FILE (- for standard input) and print the artifact's ID, SHA-256 and size.

    Where a call takes a long text, pass {"$artifact": "<id>"} instead. --timeout is the longest time without progress.

    \b
    Examples:
      toolhub artifacts put report.csv
      pg_dump shop | toolhub artifacts put - --name shop.sql
    """
    shown_name = name if name is not None else "" if file == "-" else Path(file).name
    declared = media_type if media_type is not None else mimetypes.guess_type(shown_name)[0] or ""
    header = pb.ArtifactHeader(name=shown_name, media_type=declared, task_id=task_id)
    with connected_by(options) as connection:
        _show(upload(connection, file, header), as_json)


@artifacts.command()
@click.argument("artifact_id")
@click.option(
    "-o", "--output", help="File to write, or - for standard output; default: the artifact's name in this folder."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@json_option
@connection_options
def get(artifact_id: str, output: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Download an artifact, verify its SHA-256, and write the file completely or not at all.

    A broken download resumes where it stopped, by itself and when the command is run again. --timeout is the longest
    time without progress.

    \b
    Examples:
      toolhub artifacts get art_0f3c…
      toolhub artifacts get art_0f3c… -o result.json --force
      toolhub artifacts get art_0f3c… -o - | jq .
    """
    with connected_by(options) as connection:
        request = pb.GetArtifactRequest(artifact_id=artifact_id)
        stub = ArtifactServiceStub(connection.channel)
        artifact = stub.GetArtifact(request, timeout=connection.timeout_s, metadata=connection.metadata).artifact
        if output == "-":
            download_to_stdout(connection, artifact)
            return
        file = Path(output) if output else Path(_own_name(artifact))
        download_to_file(connection, artifact, file, force=force)
    if wants_json(as_json):
        print_json({"file": str(file), **message_as_json(artifact)})
    else:
        print_pairs([("file", str(file)), *_pairs(artifact)])


@artifacts.command()
@click.argument("artifact_id")
@json_option
@connection_options
def show(artifact_id: str, as_json: bool, **options: Any) -> None:
    """Show one artifact: size, SHA-256, media type, origin and expiry.

    \b
    Example:
      toolhub artifacts show art_0f3c…
    """
    with connected_by(options) as connection:
        request = pb.GetArtifactRequest(artifact_id=artifact_id)
        stub = ArtifactServiceStub(connection.channel)
        _show(stub.GetArtifact(request, timeout=connection.timeout_s, metadata=connection.metadata).artifact, as_json)


def _show(artifact: artifact_pb2.Artifact, as_json: bool) -> None:
    if wants_json(as_json):
        print_json(message_as_json(artifact))
        return
    more = [("name", artifact.name), ("task", artifact.task_id), ("call", artifact.call_id)]
    times = [("expires", f"{artifact.expires_at.ToDatetime():%Y-%m-%d %H:%M:%S} UTC")]
    print_pairs([*_pairs(artifact), *[(name, value) for name, value in more if value], *times])


def _pairs(artifact: artifact_pb2.Artifact) -> list[tuple[str, str]]:
    return [
        ("id", artifact.artifact_id),
        ("sha256", artifact.sha256),
        ("size", f"{artifact.size_bytes:,} bytes"),
        ("type", artifact.media_type),
    ]


def _own_name(artifact: artifact_pb2.Artifact) -> str:
    """The artifact's name where it is a safe file name, else its ID."""
    for name in (artifact.name, artifact.artifact_id):
        if _SAFE_NAME.fullmatch(name) and name.isprintable():
            return name
    raise click.UsageError("The artifact's name is not a safe file name. Give a file name with -o.")
