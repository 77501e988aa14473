"""The SPIFFE Workload API: the caller's X.509-SVID and its bundles, from the agent on the same machine.

One RPC: FetchX509SVID answers at once with everything, and again with everything whenever any part changes. The
messages are defined here, because the protocol has only these. Source: SPIFFE_Workload_Endpoint and
SPIFFE_Workload_API, version 1.0 (https://spiffe.io/docs/latest/spiffe-specs/).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from textwrap import wrap
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from toolhub_service.domain.excerpts import excerpt
from toolhub_service.identity.spiffe import trust_domain_of

METHOD: Final = "/SpiffeWorkloadAPI/FetchX509SVID"
METADATA: Final = (("workload.spiffe.io", "true"),)
"""Required by agents: a browser or a proxy that is misused cannot send it."""

_SCHEME: Final = "unix:"
_FIRST_S: Final = 30.0
"""An agent that sends nothing for so long on a new stream counts as unavailable."""
_RETRY_S: Final = 1.0
_DETAILS_MAX: Final = 300
# No proxy from the environment for a socket of this machine, and its agent is retried at once after a restart.
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class X509Context(NamedTuple):
    """Everything from the agent, at one moment."""

    spiffe_id: str
    """SPIFFE id of the first SVID, which is the default one."""
    certificate: bytes
    """Certificate chain as PEM, with the intermediate CAs."""
    key: bytes
    """Private key as PEM (PKCS #8)."""
    bundles: Mapping[str, bytes]
    """CAs (PEM) by trust domain: the workload's own, and those with which its entry is federated."""

    @property
    def trust_domain(self) -> str:
        return trust_domain_of(self.spiffe_id)


class AgentUnavailable(Exception):
    """No SVID is available; the message says why."""


class AnswerUnusable(ValueError):
    """The agent's answer violates the protocol; the message says where."""


def target_of(endpoint: str) -> str:
    """Return a target of gRPC. Raises ValueError unless it is a socket of this machine: over TCP the agent could be
    anybody, and the key could be read in transit."""
    path = endpoint.removeprefix(_SCHEME)
    path = f"/{path.lstrip('/')}" if path.startswith("/") else ""
    if not endpoint.startswith(_SCHEME) or path in ("", "/") or "?" in path or "#" in path:
        raise ValueError(f"{endpoint!r} is no socket: write it as unix:///run/spire/sockets/agent.sock")
    return f"unix:{path}"


def fetch(endpoint: str, wait_s: float) -> X509Context:
    """Return the current context; waits, blocking, for an agent that is not running yet or does not know this workload
    yet.

    Raises AgentUnavailable, AnswerUnusable and ValueError.
    """
    target, end_s = target_of(endpoint), time.monotonic() + wait_s
    while True:
        left_s = end_s - time.monotonic()
        try:
            with grpc.insecure_channel(target, options=_OPTIONS) as channel:
                stream: Any = _rpc(channel)(b"", metadata=METADATA, timeout=max(left_s, _RETRY_S))
                for answer in stream:
                    stream.cancel()
                    return read(answer)
        except grpc.RpcError as failed:
            if left_s <= _RETRY_S:
                raise _unavailable(failed) from None
        else:
            raise AgentUnavailable("it ends the stream without an answer")
        time.sleep(_RETRY_S)


async def contexts(endpoint: str) -> AsyncIterator[X509Context | AnswerUnusable]:
    """Yield the context, again at each change; in place of an unusable answer, the error.

    Raises AgentUnavailable when the stream ends, and ValueError.
    """
    async with grpc.aio.insecure_channel(target_of(endpoint), options=_OPTIONS) as channel:
        call = _rpc(channel)(b"", metadata=METADATA)
        try:
            answer = await asyncio.wait_for(call.read(), _FIRST_S)
            while answer is not grpc.aio.EOF:
                yield _read_or_why(answer)
                answer = await call.read()
        except TimeoutError:
            raise AgentUnavailable(f"it has not answered within {_FIRST_S:.0f} s") from None
        except grpc.RpcError as failed:
            raise _unavailable(failed) from None
        finally:
            call.cancel()
    raise AgentUnavailable("it has ended the stream")


def read(answer: bytes) -> X509Context:
    """Return the context of an X509SVIDResponse. Raises AnswerUnusable."""
    try:
        response = _response().FromString(answer)
    except DecodeError:
        raise AnswerUnusable("it is no X509SVIDResponse") from None
    if not response.svids:
        raise AnswerUnusable("it has no SVID")
    first = response.svids[0]
    domain = trust_domain_of(first.spiffe_id)
    if not domain:
        raise AnswerUnusable("the id of its SVID is not that of a workload")
    bundles = {_domain_named(name): _pem(bundle, "bundle") for name, bundle in response.federated_bundles.items()}
    bundles[domain] = _pem(first.bundle, "bundle")
    lines = "\n".join(wrap(b64encode(first.x509_svid_key).decode(), 64))
    key = f"-----BEGIN PRIVATE KEY-----\n{lines}\n-----END PRIVATE KEY-----\n".encode()
    return X509Context(first.spiffe_id, _pem(first.x509_svid, "certificate"), key, bundles)


def _rpc(channel: Any) -> Any:
    """Return the RPC of a channel of either kind; messages stay bytes, so that an unreadable one does not end the
    stream."""
    return channel.unary_stream(METHOD)


def _read_or_why(answer: bytes) -> X509Context | AnswerUnusable:
    try:
        return read(answer)
    except AnswerUnusable as unusable:
        return unusable


def _unavailable(failed: grpc.RpcError) -> AgentUnavailable:
    """Return `code: the agent's message`, the only hint at a missing entry."""
    code, details = failed.code(), failed.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith("failed to connect"):
        details = details.rpartition("error: ")[2]  # gRPC repeats the path three times before the error
    return AgentUnavailable(f"{code.name}: {excerpt(details, _DETAILS_MAX)}".rstrip(": "))


def _domain_named(name: str) -> str:
    domain = name.removeprefix("spiffe://").rstrip("/")
    if not trust_domain_of(f"spiffe://{domain}/x"):
        raise AnswerUnusable("a federated bundle is of no trust domain")
    return domain


def _pem(der: bytes, what: str) -> bytes:
    """Return concatenated certificates as PEM. Raises AnswerUnusable."""
    found = [ssl.DER_cert_to_PEM_cert(each) for each in _elements(der)]
    if not found:
        raise AnswerUnusable(f"a {what} is empty or not DER")
    return "".join(found).encode()


def _elements(der: bytes) -> Iterator[bytes]:
    """Return the sequences (X.690, 8.9) in the bytes; none where they are truncated."""
    found, place = [], 0
    while place < len(der):
        size, start = int.from_bytes(der[place + 1 : place + 2], "big"), place + 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(der[place + 2 : start], "big")
        if der[place] != _SEQUENCE or start + size > len(der):
            return iter(())
        found.append(der[place : start + size])
        place = start + size
    return iter(found)


_SEQUENCE: Final = 0x30
_FIELD: Final = descriptor_pb2.FieldDescriptorProto


@cache
def _response() -> Any:
    """Return the class of X509SVIDResponse, of workload.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="workload.proto", syntax="proto3")
    svid = file.message_type.add(name="X509SVID")
    svid.field.add(name="spiffe_id", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    for number, name in enumerate(("x509_svid", "x509_svid_key", "bundle"), 2):
        svid.field.add(name=name, number=number, type=_FIELD.TYPE_BYTES, label=_FIELD.LABEL_OPTIONAL)
    response = file.message_type.add(name="X509SVIDResponse")
    entry = response.nested_type.add(name="FederatedBundlesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=_FIELD.TYPE_BYTES, label=_FIELD.LABEL_OPTIONAL)
    for number, name, type_name in (
        (1, "svids", ".X509SVID"),
        (3, "federated_bundles", ".X509SVIDResponse.FederatedBundlesEntry"),
    ):
        response.field.add(
            name=name, number=number, type=_FIELD.TYPE_MESSAGE, label=_FIELD.LABEL_REPEATED, type_name=type_name
        )
    pool = descriptor_pool.DescriptorPool()  # a pool of its own: another library may add the same file
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("X509SVIDResponse"))
