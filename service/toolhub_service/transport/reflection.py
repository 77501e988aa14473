"""Server reflection, v1 and v1alpha: clients such as grpcurl ask the hub for its contract.

grpcio-reflection has v1alpha only (grpc/grpc#38576); the messages of v1 are the same on the wire, so the same servicer
answers under both names.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

V1 = "grpc.reflection.v1.ServerReflection"
V1ALPHA = "grpc.reflection.v1alpha.ServerReflection"


def add_reflection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Serve the descriptors of `services` (full names)."""
    _describe_v1()
    servicer = ReflectionServicer([*services, V1, V1ALPHA], pool=_Descriptors())
    add_ServerReflectionServicer_to_server(servicer, server)
    behaviour = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_registered_method_handlers(V1, {"ServerReflectionInfo": behaviour})


class _Descriptors:
    """The default descriptor pool, which also finds the file of a method: protobuf's own finds only that of a
    service."""

    def __init__(self) -> None:
        pool = descriptor_pool.Default()
        self.FindFileByName = pool.FindFileByName
        self.FindMessageTypeByName = pool.FindMessageTypeByName
        self.FindExtensionByNumber = pool.FindExtensionByNumber
        self.FindAllExtensions = pool.FindAllExtensions
        self._file_of = pool.FindFileContainingSymbol

    def FindFileContainingSymbol(self, name: str) -> FileDescriptor:  # noqa: N802 - protobuf's name
        """Raises KeyError."""
        try:
            return self._file_of(name)
        except KeyError:
            service, _, method = name.rpartition(".")
            file = self._file_of(service)
            if any(method in known.methods_by_name for known in file.services_by_name.values()):
                return file
            raise


def _describe_v1() -> None:
    """Add v1 to the descriptor pool, copied from v1alpha: clients look up a service before they call it."""
    pool = descriptor_pool.Default()
    alpha = FileDescriptorProto()
    try:
        pool.FindServiceByName(V1)
    except KeyError:
        reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
        described = text_format.MessageToString(alpha).replace("v1alpha", "v1")
        pool.Add(text_format.Parse(described, FileDescriptorProto()))
