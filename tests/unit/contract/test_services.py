"""The services as a whole: every RPC of the contract is there, and messages that must agree do."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from toolhub.v1 import (
    approval_service_pb2,
    artifact_service_pb2,
    audit_service_pb2,
    credential_service_pb2,
    job_service_pb2,
    registry_service_pb2,
    tool_service_pb2,
)

UNARY, TO_CLIENT, TO_SERVER, BOTH_WAYS = (False, False), (False, True), (True, False), (True, True)

CONTRACT = {
    "ToolService": {
        "ListTools": UNARY,
        "SearchTools": UNARY,
        "GetTool": UNARY,
        "ExportTools": UNARY,
        "WatchTools": TO_CLIENT,
        "GetServerInfo": UNARY,
        "Invoke": UNARY,
        "InvokeStream": TO_CLIENT,
        "InvokeSession": BOTH_WAYS,
    },
    "JobService": {
        "SubmitJob": UNARY,
        "GetJob": UNARY,
        "ListJobs": UNARY,
        "WatchJob": TO_CLIENT,
        "WatchJobs": TO_CLIENT,
        "CancelJob": UNARY,
    },
    "ApprovalService": {
        "ListApprovals": UNARY,
        "GetApproval": UNARY,
        "DecideApproval": UNARY,
        "WatchApprovals": TO_CLIENT,
    },
    "ArtifactService": {
        "GetArtifact": UNARY,
        "ReadArtifact": TO_CLIENT,
        "WriteArtifact": TO_SERVER,
        "GetUpload": UNARY,
        "ListArtifacts": UNARY,
        "DeleteArtifact": UNARY,
    },
    "RegistryService": {
        "RegisterTool": UNARY,
        "RegisterTools": UNARY,
        "UnregisterTool": UNARY,
        "RefreshSources": UNARY,
        "ListSources": UNARY,
        "GetSnapshot": UNARY,
        "ListPins": UNARY,
        "DecidePin": UNARY,
        "WatchTools": TO_CLIENT,
    },
    "CredentialService": {
        "SetCredential": UNARY,
        "BeginLogin": UNARY,
        "CompleteLogin": UNARY,
        "ListCredentials": UNARY,
        "RevokeCredential": UNARY,
    },
    "AuditService": {"ListEvents": UNARY, "TailEvents": TO_CLIENT, "VerifyAudit": UNARY},
}

FILES: list[FileDescriptor] = [
    tool_service_pb2.DESCRIPTOR,
    job_service_pb2.DESCRIPTOR,
    approval_service_pb2.DESCRIPTOR,
    artifact_service_pb2.DESCRIPTOR,
    registry_service_pb2.DESCRIPTOR,
    audit_service_pb2.DESCRIPTOR,
    credential_service_pb2.DESCRIPTOR,
]


def test_every_rpc_of_the_contract_exists_and_no_other() -> None:
    found = {
        service.name: {rpc.name: (rpc.client_streaming, rpc.server_streaming) for rpc in service.methods}
        for file in FILES
        for service in file.services_by_name.values()
    }
    assert found == CONTRACT


@pytest.mark.promise("contract.reads-are-marked")
def test_reads_and_no_others_are_marked_as_free_of_side_effects() -> None:
    reading = ("Get", "List", "Search", "Export", "Watch", "Read", "Tail", "Verify")
    rpcs = [rpc for file in FILES for service in file.services_by_name.values() for rpc in service.methods]
    marked = {rpc.name for rpc in rpcs if rpc.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS}
    reads = {rpc.name for rpc in rpcs if rpc.name.startswith(reading)}
    assert reads - marked == {"GetApproval"}, "with `reveal` it is put down who has looked"
    assert marked < reads


@pytest.mark.parametrize("other", ["InvokeStreamRequest", "SessionCall"])
def test_every_way_to_call_takes_the_fields_of_invoke(other: str) -> None:
    messages = tool_service_pb2.DESCRIPTOR.message_types_by_name
    shared = shape(messages["InvokeRequest"])
    assert shape(messages[other]).items() >= shared.items()


def shape(message: Descriptor) -> dict[str, tuple[int, int, str]]:
    """Number and type of each field, by name."""
    named = {
        field.name: field.message_type.full_name
        if field.message_type
        else field.enum_type.full_name
        if field.enum_type
        else ""
        for field in message.fields
    }
    return {field.name: (field.number, field.type, named[field.name]) for field in message.fields}


WHOLE_BEFORE_PAGES = {"ExportToolsResponse", "GetSnapshotResponse"}
"""Their numbers were given away before they had pages."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.rpartition("/")[2])
def test_pages_are_asked_for_and_answered_in_one_way(file: FileDescriptor) -> None:
    for name, message in file.message_types_by_name.items():
        if "next_page_token" in message.fields_by_name:
            first = message.fields[0]
            assert (first.number, first.is_repeated) == (1, True) or name in WHOLE_BEFORE_PAGES, name
            request = file.message_types_by_name[name.replace("Response", "Request")]
            assert {"page_size", "page_token"} <= set(request.fields_by_name), name
