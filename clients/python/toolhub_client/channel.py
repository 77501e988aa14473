"""The channel to a hub: plaintext or TLS, with an API key, kept alive, retried where nothing can have happened yet."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc

from toolhub_client.context import Context
from toolhub_client.hub import Hub

SERVICE_CONFIG = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [
            {
                # Reading is repeated while the hub is away. A call is not: it may have had its effect.
                "name": [
                    {"service": "toolhub.v1.ToolService", "method": method}
                    for method in ("ListTools", "SearchTools", "GetTool", "ExportTools")
                ]
                + [{"service": "toolhub.v1.JobService", "method": method} for method in ("GetJob", "ListJobs")]
                + [{"service": "toolhub.v1.ArtifactService", "method": "GetArtifact"}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.2s",
                    "maxBackoff": "3s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ],
    }
)

OPTIONS: tuple[tuple[str, str | int], ...] = (
    ("grpc.service_config", SERVICE_CONFIG),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
)


@asynccontextmanager
async def connect(
    address: str,
    *,
    api_key: str = "",
    credentials: grpc.ChannelCredentials | None = None,
    context: Context | None = None,
    options: Sequence[tuple[str, str | int]] = (),
) -> AsyncIterator[Hub]:
    """Open a channel to the hub at `address` (`host:port`, `dns:///name:port` or `unix:/path`) and close it afterwards.

    Without `credentials` the channel is plaintext: for loopback, a Unix socket or a sidecar that adds TLS.
    `context` is what every call is made under unless it brings its own. Calls with one `request_id` share a workspace;
    without one each call has a workspace of its own, and does not see the files of the call before.
    """
    settings = [*OPTIONS, *options]
    channel = (
        grpc.aio.insecure_channel(address, options=settings)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options=settings)
    )
    metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
    async with channel:
        yield Hub(channel, metadata=metadata, context=context or Context())
