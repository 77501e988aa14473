"""Server reflection, v1 and v1alpha. grpcio-reflection ships v1alpha only (grpc/grpc#38576); the messages of v1 are
the same on the wire, so that the same servicer answers under both names."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

V1 = "grpc.reflection.v1.ServerReflection"
V1ALPHA = "grpc.reflection.v1alpha.ServerReflection"


def add_reflection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Answer what `services` (full names) look like."""
    servicer = ReflectionServicer(service_names=[*services, V1, V1ALPHA])
    add_ServerReflectionServicer_to_server(servicer, server)
    behaviour = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": behaviour}),))
