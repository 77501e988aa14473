"""An agent of SPIFFE: FetchX509SVID of the Workload API over a Unix socket, in threads of its own.

What it sends is written by hand, after the numbers and wire types of workload.proto, so that it shares nothing with the
client that it tests.
"""

from __future__ import annotations

import queue
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives import serialization

from tests.fakes.tls import Authority, Signed

METHOD = "/SpiffeWorkloadAPI/FetchX509SVID"


def field(number: int, content: bytes) -> bytes:
    """Length-delimited (https://protobuf.dev/programming-guides/encoding/)."""
    size, digits = len(content), bytearray()
    while size > 0x7F:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *digits, size]) + content


def der(pem: bytes) -> bytes:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return b"".join(ssl.PEM_cert_to_DER_cert(f"{begin}{each}") for each in pem.decode().split(begin)[1:] if end in each)


def svid(spiffe_id: str, signed: Signed, bundle: bytes) -> bytes:
    """An X509SVID; `bundle`: PEM."""
    key = serialization.load_pem_private_key(signed.key, None).private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    texts = (spiffe_id.encode(), der(signed.certificate), key, der(bundle), b"internal")
    return b"".join(field(number, text) for number, text in enumerate(texts, 1))


def response(*svids: bytes, federated: Mapping[str, bytes] | None = None, revoked: bytes = b"") -> bytes:
    """An X509SVIDResponse; `federated`: PEM by SPIFFE id of the trust domain."""
    entries = [field(1, name.encode()) + field(2, der(pem)) for name, pem in (federated or {}).items()]
    lists = [field(2, revoked)] if revoked else []
    return b"".join([*(field(1, each) for each in svids), *lists, *(field(3, entry) for entry in entries)])


class FakeSpireAgent:
    """Answers each stream with the last response, and with each that follows."""

    def __init__(self, socket: Path) -> None:
        self.endpoint = f"unix://{socket}"
        self._last: bytes | None = None
        self._streams: list[queue.SimpleQueue[bytes | None]] = []
        self._server: grpc.Server | None = None

    def gives(self, answer: bytes | None) -> None:
        """From now on, to who asks and to who listens; None: no identity is issued."""
        self._last = answer
        for stream in self._streams:
            stream.put(answer)

    def start(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(8))
        handler: Any = grpc.unary_stream_rpc_method_handler(self._fetch)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("SpiffeWorkloadAPI", {"FetchX509SVID": handler}),)
        )
        self._server.add_insecure_port(self.endpoint)
        self._server.start()

    def stop(self) -> None:
        """As one that is killed: streams break off."""
        if self._server is not None:
            for stream in self._streams:
                stream.put(None)
            self._server.stop(None).wait(30)
            self._server = None

    def _fetch(self, _: bytes, context: Any) -> Iterator[bytes]:
        if dict(context.invocation_metadata()).get("workload.spiffe.io") != "true":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "security header missing from request")
        stream: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._streams.append(stream)
        context.add_callback(lambda: stream.put(None))
        try:
            answer = self._last
            while answer is not None:
                yield answer
                answer = stream.get()
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "no identity issued")
        finally:
            self._streams.remove(stream)


@contextmanager
def agent_in(folder: Path) -> Iterator[FakeSpireAgent]:
    agent = FakeSpireAgent(folder / "agent.sock")
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()


def answer_of(spiffe_id: str, authority: Authority, *trusted: Authority, **options: Any) -> bytes:
    """One SVID of `localhost`; its bundle holds those of `trusted`, or of its own authority."""
    federated = options.pop("federated", None)
    signed = authority.sign("hub", uris=(spiffe_id,), **options)
    bundle = b"".join(each.pem for each in trusted or (authority,))
    return response(svid(spiffe_id, signed, bundle), federated=federated)
