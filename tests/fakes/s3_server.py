"""A small S3 on loopback: objects, ranges, copies, multipart uploads and bulk deletes. One bucket, `bucket`."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET

BUCKET = "bucket"
_XML = '<?xml version="1.0" encoding="UTF-8"?>'


@dataclass
class Stored:
    data: bytes
    modified_s: float


@dataclass
class Contents:
    """What the server holds and what it was asked; shared by its threads."""

    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Multipart uploads that were neither completed nor aborted."""
    requests: list[str] = field(default_factory=list)
    """`METHOD key?query`."""
    refuse_with: int = 0
    """Answer everything with this status; 0: serve."""
    lose_answers: int = 0
    """To how many requests the connection is closed once they are done, without an answer."""
    ignore_whole_ranges: bool = False
    """Answer a range over all of an object as if none were asked for."""
    refuse_copies: bool = False
    signed: set[str] = field(default_factory=set)
    """Access key ids that requests were signed with."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def age(self, seconds: float) -> None:
        """Make everything so much older."""
        for stored in self.objects.values():
            stored.modified_s -= seconds


@dataclass(frozen=True)
class FakeS3:
    url: str
    contents: Contents

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test-id",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_REGION": "eu-test-1",
            **more,
        }


@contextmanager
def fake_s3() -> Iterator[FakeS3]:
    contents = Contents()
    handler = type("Handler", (_Handler,), {"contents": contents})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield FakeS3(f"http://127.0.0.1:{server.server_address[1]}", contents)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    contents: Contents
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def _serve(self) -> None:
        split = urlsplit(self.path)
        bucket, _, key = unquote(split.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(split.query, keep_blank_values=True).items()}
        body = self._body()
        with self.contents.lock:
            self.contents.requests.append(f"{self.command} {key}?{split.query}")
            self.contents.signed.update(
                part.partition("=")[2].partition("/")[0]
                for part in self.headers.get("authorization", "").split()
                if part.startswith("Credential=")
            )
            if self.contents.refuse_with:
                self._error(self.contents.refuse_with, "Refused")
            elif bucket != BUCKET:
                self._error(404, "NoSuchBucket")
            else:
                getattr(self, f"_{self.command.lower()}")(key, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def _get(self, key: str, query: dict[str, str], body: bytes) -> None:
        stored = self.contents.objects.get(key)
        if stored is None:
            self._error(404, "NoSuchKey")
            return
        data, status, more = stored.data, 200, {}
        wanted = self.headers.get("range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1 if last else len(data), len(data))
            if start >= len(data):
                self._error(416, "InvalidRange")
                return
            if not (self.contents.ignore_whole_ranges and end - start == len(data)):
                more = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
                data, status = data[start:end], 206
        self._answer(status, data, {"ETag": _etag(stored.data), "Last-Modified": _date(stored), **more})

    _head = _get

    def _put(self, key: str, query: dict[str, str], body: bytes) -> None:
        source = self.headers.get("x-amz-copy-source")
        if query.get("uploadId", "") not in ("", *self.contents.uploads):
            self._error(404, "NoSuchUpload")
        elif "partNumber" in query:
            self.contents.uploads[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200, b"", {"ETag": _etag(body)})
        elif source is not None:
            copied = self.contents.objects.get(unquote(source).lstrip("/").partition("/")[2])
            if copied is None or self.contents.refuse_copies:
                self._error(404 if copied is None else 403, "NoSuchKey" if copied is None else "AccessDenied")
                return
            self.contents.objects[key] = Stored(copied.data, time.time())
            self._answer(200, f"{_XML}<CopyObjectResult><ETag>{_etag(copied.data)}</ETag></CopyObjectResult>".encode())
        else:
            self.contents.objects[key] = Stored(body, time.time())
            self._answer(200, b"", {"ETag": _etag(body)})

    def _post(self, key: str, query: dict[str, str], body: bytes) -> None:
        if "delete" in query:
            self._bulk_delete(body)
        elif "uploads" in query:
            upload = f"upload-{len(self.contents.requests)}"
            self.contents.uploads[upload] = {}
            xml = f"<Bucket>{BUCKET}</Bucket><Key>{key}</Key><UploadId>{upload}</UploadId>"
            self._answer(200, f"{_XML}<InitiateMultipartUploadResult>{xml}</InitiateMultipartUploadResult>".encode())
        else:
            parts = self.contents.uploads.pop(query["uploadId"])
            data = b"".join(parts[number] for number in sorted(parts))
            self.contents.objects[key] = Stored(data, time.time())
            xml = f"<Bucket>{BUCKET}</Bucket><Key>{key}</Key><ETag>{_etag(data)}</ETag>"
            self._answer(200, f"{_XML}<CompleteMultipartUploadResult>{xml}</CompleteMultipartUploadResult>".encode())

    def _delete(self, key: str, query: dict[str, str], body: bytes) -> None:
        if "uploadId" in query:
            self.contents.uploads.pop(query["uploadId"], None)
        else:
            self.contents.objects.pop(key, None)
        self._answer(204, b"")

    def _bulk_delete(self, body: bytes) -> None:
        keys = [found.text or "" for found in ET.fromstring(body).iter() if found.tag.endswith("Key")]
        for key in keys:
            self.contents.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"{_XML}<DeleteResult>{deleted}</DeleteResult>".encode())

    def _error(self, status: int, code: str) -> None:
        self._answer(status, f"{_XML}<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        if self.contents.lose_answers:
            self.contents.lose_answers -= 1
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):  # the client left
                self.wfile.write(data)


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _date(stored: Stored) -> str:
    return formatdate(stored.modified_s, usegmt=True)
