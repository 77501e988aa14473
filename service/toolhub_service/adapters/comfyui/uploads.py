"""Artifacts that a graph reads, put on the server before the graph is sent, under names made of their content.

`POST /upload/image` keeps what it is given under the name it is given; the same bytes under the same name are one file,
and other bytes under a name that is taken get another, so the name in the answer is the one that counts. An upload
changes nothing that a later one would not change again: it may be repeated.

What frames the parts is drawn anew each time: bytes that know it would end their part and add fields of their own, such
as another folder.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final, cast

from toolhub_service.adapters.comfyui import failures
from toolhub_service.adapters.comfyui.client import ComfyClient, NoReply, Reply
from toolhub_service.adapters.comfyui.outputs import SNIFFED_BYTES, extension_of, is_file_name, is_folder, sniffed
from toolhub_service.adapters.comfyui.template import Upload
from toolhub_service.domain.artifact import Artifact, ArtifactDesk
from toolhub_service.domain.call import GrantedCall

_TENANT_CHARS: Final = 16


def tenant_of(principal_id: str) -> str:
    """What stands for a principal on a server: it tells nobody who that is, and two never share a folder."""
    return hashlib.sha256(f"toolhub tenant {principal_id}".encode()).hexdigest()[:_TENANT_CHARS]


class Uploader:
    """Puts artifacts on servers."""

    def __init__(self, desk: ArtifactDesk) -> None:
        self._desk = desk

    async def put(self, client: ComfyClient, call: GrantedCall, upload: Upload, max_bytes: int) -> str:
        """The name by which a node loads it. `max_bytes`: what the server takes; 0: it does not say.

        Raises ToolFailure when the artifact is not the caller's or not for this, NoReply.
        """
        artifact = await self._desk.open(call.call.principal.id, upload.artifact_id)
        if max_bytes and artifact.size_bytes > max_bytes:
            why = f"it has {artifact.size_bytes:,} bytes, and the server takes {max_bytes:,}"
            raise failures.upload_refused(call, upload.pointer, why)
        extension = extension_of(sniffed(await self._beginning(artifact)))
        if not extension:
            why = "it is no picture, sound or film that a node could load"
            raise failures.upload_refused(call, upload.pointer, why)
        name = f"{artifact.sha256}.{extension}"
        folder = f"toolhub/{tenant_of(call.call.principal.id)}"
        return _name_in(await self._post(client, artifact, name, folder), call, upload)

    async def _beginning(self, artifact: Artifact) -> bytes:
        async with aclosing(cast("Any", self._desk.read(artifact, 0, SNIFFED_BYTES))) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def _post(self, client: ComfyClient, artifact: Artifact, name: str, folder: str) -> Reply:
        frame, parts = f"toolhub-{secrets.token_hex(16)}", {"subfolder": folder, "type": "input"}
        head = "".join(f"{_part(frame, key)}\r\n\r\n{value}\r\n" for key, value in parts.items())
        head += f'{_part(frame, "image")}; filename="{name}"\r\nContent-Type: application/octet-stream\r\n\r\n'
        tail = f"\r\n--{frame}--\r\n"
        fields = {
            "content-type": f"multipart/form-data; boundary={frame}",
            "content-length": str(len(head) + artifact.size_bytes + len(tail)),
        }

        async def body() -> AsyncIterator[bytes]:
            yield head.encode()
            async for chunk in self._desk.read(artifact):
                yield chunk
            yield tail.encode()

        return await client.post_stream("/upload/image", body(), fields)


def _part(frame: str, name: str) -> str:
    return f'--{frame}\r\nContent-Disposition: form-data; name="{name}"'


def _name_in(reply: Reply, call: GrantedCall, upload: Upload) -> str:
    if reply.status in (400, 413):
        raise failures.upload_refused(call, upload.pointer, f"the server does not take it ({reply.status})")
    name, folder = reply.fields.get("name"), reply.fields.get("subfolder", "")
    if reply.status != 200 or not isinstance(name, str) or not isinstance(folder, str):
        raise NoReply(f"it answered {reply.status} to an upload")
    if not is_file_name(name) or not is_folder(folder):
        raise NoReply("it gave an upload a name that the hub does not use")
    return f"{folder}/{name}" if folder else name
