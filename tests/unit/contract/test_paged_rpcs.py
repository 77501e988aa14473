"""Every RPC with pages has the form that is sealed where all RPCs are joined."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import MethodDescriptor

from toolhub.v1 import (
    approval_service_pb2,
    artifact_service_pb2,
    audit_service_pb2,
    credential_service_pb2,
    job_service_pb2,
    registry_service_pb2,
    tool_service_pb2,
)

SERVICES = (
    approval_service_pb2,
    artifact_service_pb2,
    audit_service_pb2,
    credential_service_pb2,
    job_service_pb2,
    registry_service_pb2,
    tool_service_pb2,
)


def _paged() -> Iterator[MethodDescriptor]:
    for service in (service for module in SERVICES for service in module.DESCRIPTOR.services_by_name.values()):
        yield from (method for method in service.methods if "page_token" in method.input_type.fields_by_name)


@pytest.mark.parametrize("method", [*_paged()], ids=lambda method: method.name)
def test_every_rpc_with_pages_is_of_the_form_that_is_sealed(method: MethodDescriptor) -> None:
    """Its token is sealed where all RPCs are joined, which holds for one call with one answer."""
    assert "next_page_token" in method.output_type.fields_by_name
    assert not method.client_streaming
    assert not method.server_streaming
