"""`toolhub artifacts …`: upload, download, list, show and delete artifacts."""

from __future__ import annotations

import mimetypes
import re
import sys
from pathlib import Path
from typing import Any

import click
import grpc

from toolhub.v1 import artifact_pb2
from toolhub.v1 import artifact_service_pb2 as pb
from toolhub_service.cli.artifacts.transfers import download, download_to_file, upload
from toolhub_service.cli.completion import complete_artifact
from toolhub_service.cli.connection.client import (
    PAGE_MAX,
    Connection,
    connect_by_options,
    connection_options,
    status_of,
)
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import (
    binary_output,
    count_text,
    footnote,
    json_option,
    json_switch,
    message_as_json,
    print_answer,
    print_json,
    print_line,
    print_pairs,
    print_table,
    text_option,
    utc,
    wants_json,
)
from toolhub_service.cli.terminal.questions import confirm

# File names that are neither hidden nor look like an option.
_SAFE_NAME = re.compile(r"[^./\\\x00-\x1f-][^/\\\x00-\x1f]*")


@click.group(cls=SuggestingGroup)
def artifacts() -> None:
    """Upload, download, list and delete artifacts: large inputs and outputs that calls refer to.

    An ARTIFACT is an ID or a prefix of one that matches only one of the newest 1,000 artifacts.
    """


@artifacts.command()
@click.argument("file")
@click.option("--name", help="Name of the artifact; default: the name of FILE.")
@click.option("--media-type", help="Media type such as text/csv; default: guessed from the name.")
@click.option("--task-id", default="", help="ID of the task that the artifact belongs to.")
@json_option
@connection_options
def put(file: str, name: str | None, media_type: str | None, task_id: str, as_json: bool, **options: Any) -> None:
    """Upload FILE (- for standard input) and print the artifact's ID, SHA-256 and size.

    A call takes {"$artifact": "<id>"} in place of a long text. The upload of a file resumes by itself when its
    connection breaks; that of standard input cannot. --timeout is the longest time without progress.

    \b
    Examples:
      toolhub artifacts put report.csv
      pg_dump shop | toolhub artifacts put - --name shop.sql
    """
    shown_name = name if name is not None else "" if file == "-" else Path(file).name
    declared = media_type if media_type is not None else mimetypes.guess_type(shown_name)[0] or ""
    header = pb.ArtifactHeader(name=shown_name, media_type=declared, task_id=task_id)
    with connect_by_options(options) as connection:
        print_answer(upload(connection, file, header), as_json, _show)


@artifacts.command()
@click.argument("artifact_id", metavar="ARTIFACT", shell_complete=complete_artifact)
@click.option(
    "-o", "--output", help="File to write, or - for standard output; default: the artifact's name in this folder."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@json_switch
@connection_options
def get(artifact_id: str, output: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Download an artifact, verify its SHA-256, and write the file completely or not at all.

    An interrupted download resumes where it stopped, by itself or when the command is run again. --timeout is the
    longest time without progress.

    \b
    Examples:
      toolhub artifacts get art_0f3c… -o result.json --force
      toolhub artifacts get art_0f3c… -o - | jq .
    """
    with connect_by_options(options) as connection:
        artifact = _find_artifact(connection, artifact_id)
        if output == "-":
            download(connection, artifact, binary_output())
            return
        file = Path(output) if output else Path(_own_name(artifact))
        download_to_file(connection, artifact, file, force=force)
    if wants_json(as_json):
        print_json({"file": str(file), **message_as_json(artifact)})
    else:
        print_pairs([("file", str(file)), *_pairs(artifact)])


@artifacts.command()
@click.argument("artifact_id", metavar="ARTIFACT", shell_complete=complete_artifact)
@json_option
@connection_options
def show(artifact_id: str, as_json: bool, **options: Any) -> None:
    """Show one artifact: size, SHA-256, media type, origin and expiry.

    \b
    Example:
      toolhub artifacts show art_0f3c…
    """
    with connect_by_options(options) as connection:
        print_answer(_find_artifact(connection, artifact_id), as_json, _show)


@artifacts.command("list")
@click.option("--task", "task_id", default="", help="Only artifacts of this task ID.")
@click.option("--call", "call_id", default="", help="Only artifacts created by this call.")
@click.option("--sha256", default="", help="Only artifacts with this SHA-256.")
@click.option("--principal", default="", help="Only artifacts of this principal; needs the role auditor.")
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), default=30, show_default=True, help="Maximum number to show."
)
@click.option("--all", "is_all", is_flag=True, help="Show all; --limit is ignored.")
@text_option
@connection_options
def list_artifacts(
    task_id: str, call_id: str, sha256: str, principal: str, limit: int, is_all: bool, as_json: bool, **options: Any
) -> None:
    """List artifacts, newest first.

    \b
    Examples:
      toolhub artifacts list
      toolhub artifacts list --task nightly-report -o json
      toolhub artifacts list --sha256 "$(sha256sum report.csv | cut -d' ' -f1)"
    """
    if sha256 and re.fullmatch("[0-9a-fA-F]{64}", sha256) is None:
        raise click.UsageError("--sha256 takes 64 hex digits, as sha256sum prints them.")
    request = pb.ListArtifactsRequest(
        page_size=PAGE_MAX, task_id=task_id, call_id=call_id, sha256=sha256.lower(), principal=principal
    )
    found: list[artifact_pb2.Artifact] = []
    with connect_by_options(options) as connection:
        for page in connection.pages(connection.artifacts.ListArtifacts, request):
            found.extend(page.artifacts)
            # One more than requested shows that there are more.
            if not is_all and len(found) > limit:
                break
    shown = found if is_all else found[:limit]
    if wants_json(as_json):
        print_json({"artifacts": [message_as_json(artifact) for artifact in shown]})
        return
    if not found:
        footnote("No artifact matches. `toolhub artifacts put FILE` uploads one.")
        return
    rows = ((one.artifact_id, f"{one.size_bytes:,}", utc(one.expires_at), one.name or "-") for one in shown)
    print_table(("ARTIFACT", "BYTES", "EXPIRES", "NAME"), rows)
    more = "; there are more: --all lists all" if len(found) > len(shown) else ""
    footnote(f"{count_text(len(shown), 'artifact')}{more}. To download one: toolhub artifacts get ARTIFACT")


@artifacts.command()
@click.argument("artifact_ids", metavar="ARTIFACT...", nargs=-1, required=True, shell_complete=complete_artifact)
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
@json_option
@connection_options
def delete(artifact_ids: tuple[str, ...], is_sure: bool, as_json: bool, **options: Any) -> None:
    """Delete your own artifacts before they expire. This cannot be undone; the audit log records it.

    \b
    Example:
      toolhub artifacts delete art_0f3c… --yes
    """
    with connect_by_options(options) as connection:
        found = [_find_artifact(connection, artifact_id) for artifact_id in artifact_ids]
        if not is_sure:
            if not sys.stdin.isatty() or wants_json(as_json):
                raise click.UsageError("Cannot ask for confirmation without a terminal. Pass --yes to delete.")
            for artifact in found:
                print_pairs(_pairs(artifact))
            if not confirm(f"Delete {count_text(len(found), 'artifact')}?"):
                raise click.Abort
        for artifact in found:
            request = pb.DeleteArtifactRequest(artifact_id=artifact.artifact_id)
            connection.call(connection.artifacts.DeleteArtifact, request)
            if not wants_json(as_json):
                print_line(f"{artifact.artifact_id} is deleted")
    if wants_json(as_json):
        print_json({"deleted": [artifact.artifact_id for artifact in found]})


def _find_artifact(connection: Connection, artifact_id: str) -> artifact_pb2.Artifact:
    """Return the artifact with this ID, or the only one whose ID begins so. Raises click.UsageError, grpc.RpcError."""
    request = pb.GetArtifactRequest(artifact_id=artifact_id)
    try:
        return connection.call(connection.artifacts.GetArtifact, request).artifact
    except grpc.RpcError as unknown:
        if status_of(unknown)[0] is not grpc.StatusCode.NOT_FOUND:
            raise
        every = pb.ListArtifactsRequest()
        # Only now, because listing costs another request and scripts mostly use whole ids.
        whole = connection.full_id(artifact_id, connection.artifacts.ListArtifacts, every, "artifacts", "artifact_id")
        if whole == artifact_id:
            raise
    return connection.call(connection.artifacts.GetArtifact, pb.GetArtifactRequest(artifact_id=whole)).artifact


def _show(artifact: artifact_pb2.Artifact) -> None:
    more = [("name", artifact.name), ("task", artifact.task_id), ("call", artifact.call_id)]
    given = [(name, value) for name, value in more if value]
    print_pairs([*_pairs(artifact), *given, ("expires", utc(artifact.expires_at))])


def _pairs(artifact: artifact_pb2.Artifact) -> list[tuple[str, str]]:
    return [
        ("id", artifact.artifact_id),
        ("sha256", artifact.sha256),
        ("size", f"{artifact.size_bytes:,} bytes"),
        ("type", artifact.media_type),
    ]


def _own_name(artifact: artifact_pb2.Artifact) -> str:
    """Return the artifact's name if it is a safe file name, else its ID."""
    for name in (artifact.name, artifact.artifact_id):
        # The uploader chose the name: it must neither leave the folder nor drive the terminal.
        if _SAFE_NAME.fullmatch(name) and name.isprintable():
            return name
    raise click.UsageError("The artifact's name is not a safe file name. Give a file name with -o.")
