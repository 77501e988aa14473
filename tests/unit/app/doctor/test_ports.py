"""The doctor's report on servers that answer and on those that do not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fakes.tls import Authority, tls_settings
from tests.free_port import free_port
from tests.hub import running_hub, settings_of
from toolhub_service.app.doctor import Finding, State
from toolhub_service.app.doctor.ports import is_hub, is_metrics, is_own, port_checks
from toolhub_service.app.doctor.remote import server_checks, store_checks
from toolhub_service.app.doctor.start import start_findings
from toolhub_service.settings.loading import load_settings


async def found(**environment: str) -> list[Finding]:
    settings = load_settings(None, environment)
    refused = [each for each in await start_findings(settings) if each.name in ("redis", "postgres")]
    return refused or list(server_checks(settings))


async def test_a_hub_alone_shares_no_server() -> None:
    assert await found() == []


async def test_an_answering_redis_is_healthy(redis_url: str) -> None:
    (finding,) = await found(TOOLHUB_STORES_REDIS_URL=redis_url)
    assert (finding.name, finding.state) == ("redis", State.OK)


async def test_an_answering_postgres_is_healthy(postgres_url: str) -> None:
    (finding,) = await found(TOOLHUB_STORES_POSTGRES_URL=postgres_url)
    assert (finding.name, finding.state) == ("postgres", State.OK)


@pytest.mark.parametrize(
    ("setting", "scheme"), [("TOOLHUB_STORES_REDIS_URL", "redis"), ("TOOLHUB_STORES_POSTGRES_URL", "postgresql")]
)
async def test_a_server_that_is_away_is_reported_without_its_password(setting: str, scheme: str) -> None:
    (finding,) = await found(**{setting: f"{scheme}://me:hidden-word@127.0.0.1:{free_port()}/0"})
    assert finding.state is State.FAIL
    assert "no connection" in finding.text
    assert "hidden-word" not in finding.text + finding.advice


async def test_the_ports_of_a_hub_are_distinguished_from_those_of_strangers(tmp_path: Path) -> None:
    port = free_port()
    async with running_hub(tmp_path, settings={"metrics": {"listen": f"127.0.0.1:{port}"}}) as running:
        assert await asyncio.to_thread(is_hub, running.address)
        assert await asyncio.to_thread(is_metrics, "127.0.0.1", port)
        assert not await asyncio.to_thread(is_hub, f"127.0.0.1:{port}")
        assert not await asyncio.to_thread(is_metrics, "127.0.0.1", running.hub.server.port)
    assert not await asyncio.to_thread(is_metrics, "127.0.0.1", port)


def test_the_port_for_keys_is_looked_at_where_one_is_set(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"server": {"tls": {"keys_listen": f"127.0.0.1:{free_port()}"}}})
    found = {each.name: each for each in port_checks(settings)}
    assert (found["keys port"].state, settings.server.tls.keys_listen in found["keys port"].text) == (State.OK, True)


async def test_the_port_of_a_hub_with_tls_is_known_by_its_certificate(tmp_path: Path) -> None:
    with_tls, other = tls_settings(tmp_path, Authority(), client_ca=Authority()), tmp_path / "other"
    other.mkdir()
    async with running_hub(tmp_path, settings=with_tls) as running:
        port = running.hub.server.port
        assert await asyncio.to_thread(is_own, settings_of(tmp_path, with_tls), "localhost", port)
        strange = settings_of(other, tls_settings(other, Authority()))
        assert not await asyncio.to_thread(is_own, strange, "localhost", port)
    assert not await asyncio.to_thread(is_own, settings_of(tmp_path, with_tls), "localhost", port)


@pytest.mark.parametrize(
    ("environment", "state", "expected"),
    [
        ({}, State.OK, "sqlite of this hub alone"),
        ({"POSTGRES_URL": "postgresql://db/hub"}, State.OK, "keys, approvals and pins: sqlite of this hub alone"),
        ({"KIND": "postgres", "POSTGRES_URL": "postgresql://db/hub"}, State.OK, "stores.postgres_url"),
    ],
)
def test_which_stores_are_shared_is_reported(environment: dict[str, str], state: State, expected: str) -> None:
    settings = load_settings(None, {f"TOOLHUB_STORES_{name}": value for name, value in environment.items()})
    (finding,) = store_checks(settings)
    assert (finding.name, finding.state) == ("stores", state)
    assert expected in finding.text
