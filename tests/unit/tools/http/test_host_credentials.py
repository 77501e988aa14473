"""A host that refuses its caller's credential, and secrets that come back in pieces."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from tests.fakes.artifacts import a_call
from tests.fakes.egress import egress_clients
from tests.fakes.http_server import RecordedRequest, response, serving
from tests.fakes.resolvers import FixedResolver
from tests.fakes.tool_context import egress_context
from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.egress.client import HttpRequest
from toolhub_service.egress.hiding import MaskedPieces
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.guards.urls import ParsedUrl
from toolhub_service.tools.http.host_credentials import open_as_caller


class ShownCredential(NamedTuple):
    secret: str
    header: str = "authorization"

    @property
    def value(self) -> str:
        return f"Bearer {self.secret}"


class RenewingCredentials:
    """Gives `old-secret`, then `new-secret`, then nothing."""

    def __init__(self) -> None:
        self.renewals = 0

    def name_at(self, url: ParsedUrl) -> str:
        return "api"

    async def of(self, principal: Principal, name: str) -> ShownCredential:
        return ShownCredential("old-secret")

    async def renew(self, principal: Principal, name: str, used: str) -> ShownCredential | None:
        self.renewals += 1
        return ShownCredential("new-secret") if used == "old-secret" else None

    def refusal(self, name: str) -> ToolFailure:
        return refuse(ErrorKind.PERMISSION_DENIED, "refused", source=name)


@pytest.mark.parametrize(
    ("target", "accepted", "sent", "ends"),
    [
        ("/", "new-secret", ["old-secret", "new-secret"], 200),
        ("/", "another", ["old-secret", "new-secret"], "refused"),
        ("/moved", "another", ["old-secret", "old-secret"], 401),
    ],
    ids=["renewed", "refused again", "behind a redirect what was asked has been done"],
)
async def test_a_401_is_answered_with_one_renewal_and_only_where_nothing_has_run(
    target: str, accepted: str, sent: list[str], ends: int | str
) -> None:
    async def answer(asked: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        status = 200 if accepted in asked.headers["authorization"] else 401
        writer.write(response(status=303, location="/") if asked.target == "/moved" else response(status=status))
        await writer.drain()

    hosts = RenewingCredentials()
    came: list[int | str] = []
    async with serving(answer) as server, egress_clients() as clients:
        context = replace(egress_context(server.rule()), call=a_call())
        request = HttpRequest(server.url(target), "POST", body=b"{}")
        client, deadline_s = clients(FixedResolver(default=("127.0.0.1",))), context.deadline_s
        try:
            async with open_as_caller(client, hosts, request, context, deadline_s=deadline_s) as given:
                came.append(given.status)
        except ToolFailure as failure:
            came.append(failure.error.message)
    assert came == [ends]
    assert [asked.headers["authorization"].removeprefix("Bearer ") for asked in server.asked] == sent
    assert hosts.renewals == len(set(sent)) - 1
    assert context.mask is not None
    assert context.mask.text(" ".join(sent)) == " ".join("***" for _ in sent)


@pytest.mark.parametrize("field", ["x-api-key", "x_api_key"])
async def test_a_caller_cannot_send_the_header_of_its_credential_in_any_spelling(field: str) -> None:
    class CredentialsByKey(RenewingCredentials):
        async def of(self, principal: Principal, name: str) -> ShownCredential:
            return ShownCredential("the-secret-of-alice", "x-api-key")

    async with egress_clients() as clients:
        context = replace(egress_context(EgressRule(hosts=("api.example",))), call=a_call())
        request = HttpRequest("https://api.example/", headers=((field, "another's"),))
        client = clients(FixedResolver())
        with pytest.raises(ToolFailure) as refused:
            async with open_as_caller(client, CredentialsByKey(), request, context, deadline_s=context.deadline_s):
                pass
    assert "Leave out the header" in refused.value.error.message


def test_the_rest_of_a_cut_secret_is_hidden_in_each_spelling() -> None:
    secret = "a-secret/0123456789"
    mask = Mask([secret])
    for spelling in (secret, quote(secret, safe=""), b64encode(secret.encode()).decode()[:-4]):
        for left in range(4, len(spelling)):
            assert mask.cut(f"before {spelling[:left]}".encode()) == b"before ***", spelling[:left]
    assert mask.cut(f"before {secret} a-s".encode()) == b"before *** a-s"
    assert Mask().cut(b"before") == b"before"


class FakeBody:
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    async def next_piece(self) -> bytes:
        return next(self._pieces, b"")


async def test_a_secret_is_hidden_wherever_a_body_is_divided() -> None:
    text = b"before a-secret-0123456789 between a-secret-0123456789 a-secret-012345678"
    for size in range(1, len(text)):
        body = MaskedPieces(
            FakeBody(text[at : at + size] for at in range(0, len(text), size)), Mask(["a-secret-0123456789"])
        )
        pieces = []
        while piece := await body.next_piece():
            pieces.append(piece)
        assert b"".join(pieces) == b"before *** between *** a-secret-012345678"
