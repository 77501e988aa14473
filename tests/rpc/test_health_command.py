"""`toolhub health --self`: a hub is called as its own configuration states, with TLS, mutual TLS or neither."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.fakes.tls import Authority, tls_settings
from tests.free_port import free_port
from tests.hub import RunningHub, running_hub
from toolhub_service.cli.health import health
from toolhub_service.cli.serve import client_environment
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import load_settings


def configured(folder: Path, running: RunningHub, host: str) -> Path:
    """The configuration of the running hub, which listens on the port that it has found."""
    server = running.hub.settings.server
    tls = {name: getattr(server.tls, name) for name in ("certificate_file", "key_file", "client_ca_file")}
    document: dict[str, Any] = {"server": {"listen": f"{host}:{running.hub.server.port}", "tls": tls}}
    document["metrics"] = {"listen": running.hub.settings.metrics.listen}
    file = folder / "toolhub.yaml"
    file.write_text(yaml.safe_dump({**document, "auth": {"modes": ["api-key"]}}))
    return file


async def asked(file: Path, *more: str) -> Result:
    runner = CliRunner(env={"TOOLHUB_CONFIG": str(file)})
    return await asyncio.to_thread(runner.invoke, health, ["--self", *more])


def broken_file(file: Path) -> None:
    file.write_text("half written")


@pytest.mark.promise("cli.health-under-tls")
@pytest.mark.parametrize("wants_certificates", [False, True])
async def test_a_probe_of_the_own_configuration_needs_no_option_under_tls(
    tmp_path: Path, wants_certificates: bool
) -> None:
    authority = Authority()
    settings = tls_settings(tmp_path, authority, client_ca=authority if wants_certificates else None)
    async with running_hub(tmp_path, settings=settings) as running:
        for host in ("0.0.0.0", "127.0.0.1", "localhost"):
            answer = await asked(configured(tmp_path, running, host), "-o", "json")
            assert (answer.exit_code, json.loads(answer.stdout)) == (0, {"status": "SERVING"}), answer.output
    gone = await asked(tmp_path / "toolhub.yaml", "--config", str(tmp_path / "toolhub.yaml"))
    assert (gone.exit_code, f"`toolhub serve --config {tmp_path}/toolhub.yaml`" in gone.output) == (3, True), (
        gone.output
    )
    assert "no hub runs with this configuration" in gone.output
    assert "--address" not in gone.output


@pytest.mark.promise("cli.health-under-tls")
async def test_a_hub_that_wants_certificates_of_another_ca_is_asked_at_the_port_of_its_metrics(tmp_path: Path) -> None:
    settings = tls_settings(tmp_path, Authority(), client_ca=Authority())
    settings["metrics"] = {"listen": f"127.0.0.1:{free_port()}"}
    async with running_hub(tmp_path, settings=settings) as running:
        file = configured(tmp_path, running, "127.0.0.1")
        answer = await asked(file)
        assert (answer.exit_code, answer.stdout) == (0, "SERVING\n"), answer.output
        assert "/readyz" in answer.stderr
        assert (await asked(file, "--verbose")).exit_code == 3
        certificate = Path(settings["server"]["tls"]["certificate_file"])
        broken_file(certificate)  # the hub goes on under the one that it has
        assert ((left := await asked(file)).exit_code, left.stdout) == (0, "SERVING\n"), left.output
        running.hub.observing.endpoint.is_ready = lambda: False
        assert ((left := await asked(file)).exit_code, left.stdout) == (1, "NOT_SERVING\n")
        without = yaml.safe_load(file.read_text()) | {"metrics": {"listen": ""}}
        file.write_text(yaml.safe_dump(without))
        unknown = await asked(file)
    assert unknown.exit_code == 3
    assert "metrics.listen" in unknown.output


async def test_a_hub_without_tls_is_asked_likewise_and_an_unknown_port_is_refused(
    hub: RunningHub, tmp_path: Path
) -> None:
    answer = await asked(configured(tmp_path, hub, "127.0.0.1"))
    assert (answer.exit_code, answer.stdout) == (0, "SERVING\n"), answer.output
    (tmp_path / "toolhub.yaml").write_text("server: {listen: '127.0.0.1:0'}\n")
    unknown = await asked(tmp_path / "toolhub.yaml")
    assert (unknown.exit_code, "port 0" in unknown.output) == (2, True)


def test_the_next_command_reaches_a_hub_by_a_name_of_its_certificate(tmp_path: Path) -> None:
    settings = tls_settings(tmp_path, Authority())["server"]["tls"]
    environment = {f"TOOLHUB_SERVER_TLS_{name.upper()}": value for name, value in settings.items()}
    loaded: Settings = load_settings(None, environment)
    ca = f"TOOLHUB_CA_FILE={tmp_path / 'hub.pem'} "
    for address in ("127.0.0.1:7", "0.0.0.0:7", "localhost:7"):
        assert client_environment(loaded, address) == f"TOOLHUB_ADDRESS=localhost:7 {ca}"
    assert client_environment(load_settings(None, {}), "0.0.0.0:50051") == ""
