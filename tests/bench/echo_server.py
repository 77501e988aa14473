"""The floor: bare grpc.aio echoes, unary and of sessions, with the hub's own messages, no interceptor and no chain.

python -m tests.bench.echo_server      prints `port N` and serves until killed
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from toolhub.v1 import result_pb2, tool_service_pb2_grpc
from toolhub.v1 import tool_service_pb2 as pb


class Echo(tool_service_pb2_grpc.ToolServiceServicer):
    async def Invoke(self, request: pb.InvokeRequest, context: Any) -> pb.InvokeResponse:
        result = result_pb2.ToolResult(ok=True, result_json=request.intent.args_json, tool=request.intent.tool)
        return pb.InvokeResponse(result=result)

    async def InvokeSession(
        self, request_iterator: AsyncIterator[pb.InvokeSessionRequest], context: Any
    ) -> AsyncIterator[pb.InvokeSessionResponse]:
        async for request in request_iterator:
            response = pb.InvokeSessionResponse()
            for call in request.calls:
                result = response.events.add(call_id=call.call_id).result
                result.ok, result.result_json, result.tool = True, call.intent.args_json, call.intent.tool
            yield response


async def serve() -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(Echo(), server)  # type: ignore[abstract]  # two RPCs are all it serves
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"port {port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve())
