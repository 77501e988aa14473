"""The SPIFFE Workload API: the X.509-SVID of whoever asks and the bundles that go with it, from the agent beside it.

One RPC: FetchX509SVID answers at once with all there is, and once more with all of it whenever any part changes. The
messages are described here, for the protocol has no more of them than this.
Source: SPIFFE_Workload_Endpoint and SPIFFE_Workload_API, version 1.0 (https://spiffe.io/docs/latest/spiffe-specs/).
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

from toolhub_service.identity.spiffe import trust_domain_of

METHOD: Final = "/SpiffeWorkloadAPI/FetchX509SVID"
METADATA: Final = (("workload.spiffe.io", "true"),)
"""Without it an agent must refuse: a browser or a proxy that is led astray cannot send it."""

_SCHEME: Final = "unix:"
_FIRST_S: Final = 30.0
"""An agent that says nothing for so long on a new stream is away."""
_RETRY_S: Final = 1.0
_DETAILS_MAX: Final = 300
# No proxy of the environment stands before a socket of this machine, and its agent is tried at once after a restart.
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class X509Context(NamedTuple):
    """All that the agent gives, at one moment."""

    spiffe_id: str
    """Of the first SVID, which is the default one."""
    certificate: bytes
    """PEM, with the intermediate CAs."""
    key: bytes
    """PEM (PKCS #8)."""
    bundles: Mapping[str, bytes]
    """CAs (PEM) by trust domain: the workload's own, and those that its entry is federated with."""

    @property
    def trust_domain(self) -> str:
        return trust_domain_of(self.spiffe_id)


class AgentUnavailable(Exception):
    """There is no SVID to be had; the message says why."""


class AnswerUnusable(ValueError):
    """The agent's answer is none of the protocol; the message says where."""


def target_of(endpoint: str) -> str:
    """A target of gRPC. Raises ValueError for what is no socket of this machine: over TCP the agent could be anybody,
    and whoever listens could read the key."""
    path = endpoint.removeprefix(_SCHEME)
    path = f"/{path.lstrip('/')}" if path.startswith("/") else ""
    if not endpoint.startswith(_SCHEME) or path in ("", "/") or "?" in path or "#" in path:
        raise ValueError(f"{endpoint!r} is no socket: write it as unix:///run/spire/sockets/agent.sock")
    return f"unix:{path}"


def fetch(endpoint: str, wait_s: float) -> X509Context:
    """What there is now; an agent that is not there yet, or does not know this workload yet, is waited for. Blocks.

    Raises AgentAway, AnswerUnusable and ValueError.
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
    """What there is, and each time it changes; in place of an answer that cannot be used, why.

    Raises AgentAway when the stream ends, and ValueError.
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
    """An X509SVIDResponse. Raises AnswerUnusable."""
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
    """Of a channel of either kind; bytes stay bytes, for what cannot be read ends no stream."""
    return channel.unary_stream(METHOD)


def _read_or_why(answer: bytes) -> X509Context | AnswerUnusable:
    try:
        return read(answer)
    except AnswerUnusable as unusable:
        return unusable


def _unavailable(failed: grpc.RpcError) -> AgentUnavailable:
    """`code: what the agent says`, which is the one hint at an entry that is missing."""
    code, details = failed.code(), failed.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith("failed to connect"):
        details = details.rpartition("error: ")[2]  # gRPC says the path three times before what is wrong with it
    return AgentUnavailable(f"{code.name}: {details[:_DETAILS_MAX]}".rstrip(": "))


def _domain_named(name: str) -> str:
    domain = name.removeprefix("spiffe://").rstrip("/")
    if not trust_domain_of(f"spiffe://{domain}/x"):
        raise AnswerUnusable("a federated bundle is of no trust domain")
    return domain


def _pem(der: bytes, what: str) -> bytes:
    """Of certificates one behind the other. Raises AnswerUnusable."""
    found = [ssl.DER_cert_to_PEM_cert(each) for each in _elements(der)]
    if not found:
        raise AnswerUnusable(f"a {what} is empty or not DER")
    return "".join(found).encode()


def _elements(der: bytes) -> Iterator[bytes]:
    """The sequences (X.690, 8.9) of which the bytes consist; none where they are cut off."""
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
    """The class of X509SVIDResponse, of workload.proto."""
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
    pool = descriptor_pool.DescriptorPool()  # its own: another library may bring the same file
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("X509SVIDResponse"))
