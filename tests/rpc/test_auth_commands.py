"""`toolhub auth check`, `toolhub auth whoami` and what `toolhub doctor` finds of issuers, with a real issuer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.hub import QUIET, running_hub, settings_of
from tests.rpc.test_tokens import HUB, POLICY, TERMS
from tests.servers.issuer import real_issuer
from toolhub_service.app.doctor import State
from toolhub_service.app.doctor.remote import issuer_checks
from toolhub_service.cli.root import toolhub

MCP = "https://hub.example.com/mcp"


async def typed(*words: str, config: Path, sent: str = "") -> Result:
    environment = {"TOOLHUB_CONFIG": str(config)}
    return await asyncio.to_thread(CliRunner().invoke, toolhub, ["auth", *words], input=sent, env=environment)


def results(ran: Result) -> dict[str, tuple[bool, str]]:
    """By check: whether it was passed, and why."""
    return {row["check"]: (row["passed"], row["text"]) for row in json.loads(ran.stdout)}


async def findings(home: Path, settings: Mapping[str, Any]) -> dict[str, tuple[State, str]]:
    found = [finding async for finding in issuer_checks(settings_of(home, settings))]
    return {finding.name: (finding.state, finding.text) for finding in found}


@pytest.mark.promise("identity.tokens-refused")
async def test_a_token_is_explained_check_by_check_and_never_printed(tmp_path: Path) -> None:
    async with real_issuer() as issuer:
        settings: dict[str, Any] = {"auth": issuer.settings(HUB, **TERMS)}
        config = tmp_path / "config.yaml"
        (tmp_path / "policy.yaml").write_text(POLICY)
        file: dict[str, Any] = {
            **settings,
            "data_dir": str(tmp_path / "hub"),
            "policy": {"file": str(tmp_path / "policy.yaml")},
            "server": {**QUIET["server"], "mcp": {"public_url": MCP}},
        }
        config.write_text(yaml.safe_dump(json.loads(json.dumps(file))))
        admin, other = await issuer.token("curve", HUB), await issuer.token("robot", "https://other.example")

        ran = await typed("check", "-", "--json", config=config, sent=f"{admin}\n")
        checks = results(ran)
        assert ran.exit_code == 1, "it is good for gRPC, and not made for MCP"
        assert [name for name, (is_passed, _) in checks.items() if not is_passed] == ["audience, MCP"]
        assert checks["principal"][1] == "real:curve"
        assert checks["roles"][1] == "agent, operator"
        assert checks["signature"] == (True, f"by a key of {issuer.url}")

        forged = f"{admin[:-8]}AAAAAAAA"
        for token, refused in ((forged, "signature"), (other, "audience, gRPC"), ("a.b.c", "form"), ("x", "form")):
            ran = await typed("check", token, config=config)
            assert ran.exit_code == 1, ran.output
            assert any(line.startswith(f"REFUSED  {refused}") for line in ran.stdout.splitlines()), ran.stdout
            assert not any(part in ran.stdout for part in token.split(".") if len(part) > 3), ran.stdout

        found = await findings(tmp_path, {**settings, "server": {"mcp": {"enabled": True}}})
        assert found["issuer real"] == (State.OK, f"{issuer.url} publishes 3 keys that are accepted")
        assert found["issuers"][0] is State.WARN
        await issuer.does("away")
        assert (await findings(tmp_path, settings))["issuer real"][0] is State.FAIL
        ran = await typed("check", admin, "--json", config=config)
        assert results(ran)["signature"][0] is False
        await issuer.does("back")

        async with running_hub(tmp_path, policy=POLICY, settings=settings) as hub:
            words = ("whoami", "--address", hub.address, "--api-key", admin)
            known = (await typed(*words, config=config)).stdout.splitlines()
            assert known[:2] == ["real:curve (agent, operator)", "groups: admins"]
            ran = await typed(*words[:-1], forged, config=config)
            assert ran.exit_code == 3, ran.output
            assert "The signature of the token is wrong." in ran.output
