"""The Helm chart: what it renders (written down by `make acceptance-helm`, which has Helm) is what a hub runs with."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.fakes.tls import Authority
from tests.hub import CALL_TIMEOUT_S, channel_to, request
from tests.processes import Served, served
from tests.unit.deploy.pods import Pod
from toolhub.v1 import error_pb2
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service import __version__
from toolhub_service.app.config_files.key_file import KeyFile
from toolhub_service.settings.loading import load_settings

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "toolhub"
RENDERED = Path(__file__).parent / "chart" / "rendered"
VALUES = sorted((Path(__file__).parent / "chart" / "values").glob("*.yaml"))
GIVEN = {
    "toolhub_keys": {"api-keys.yaml": b"keys: []\n"},
    "toolhub_tls": {"tls.crt": b"", "tls.key": b""},
    "agents_ca": {"ca.crt": b""},
    "toolhub_postgres": {"uri": b"postgresql://toolhub:hidden-word@db/toolhub"},
    "toolhub_redis": {"url": b"redis://:hidden-word@cache/0"},
    "toolhub_stores": {"postgres": b"postgresql://db/toolhub", "redis": b"redis://cache/0"},
    "toolhub_shared": {"plan.key": b"a" * 64, "audit.key": b"b" * 64, "mcp-state.key": b"c" * 64},
    "governance": {"policy.yaml": b"extends: none\n"},
    "tool_sources": {"sources.yaml": b"sources: {}\n"},
    "crm": {"token": b"hidden-word"},
    "mcp_client": {"client.pem": b""},
}
POLICY_DENIED = error_pb2.ERROR_KIND_POLICY_DENIED
AT_ONCE = {"TOOLHUB_SERVER_DRAIN_NOTICE_S": "0"}
"""No mesh has to notice that the hub of a test leaves."""
SERVICES = {
    f"toolhub.v1.{name}"
    for path in (ROOT / "proto" / "toolhub" / "v1").glob("*.proto")
    for name in re.findall(r"(?m)^service (\w+)", path.read_text())
}


def chart_digest(values: Path) -> str:
    """Of all that a rendering is made from, but for the chart's version."""
    digest = hashlib.sha256(values.read_bytes())
    for path in sorted(CHART.rglob("*")):
        if path.is_file() and path.name not in ("Chart.yaml", "README.md", "NOTES.txt", "values.schema.json"):
            digest.update(path.relative_to(CHART).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def pod_of(name: str, folder: Path, **given: Mapping[str, bytes]) -> Pod:
    return Pod.of(RENDERED / f"{name}.yaml", folder, **{**GIVEN, **given})


def a_key(folder: Path) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """api-keys.yaml with a key of `me`, as `toolhub keys create me` makes it, and the metadata of its calls."""
    folder.mkdir(mode=0o700)
    key = KeyFile(folder / "api-keys.yaml").create("me")
    return (folder / "api-keys.yaml").read_bytes(), (("authorization", f"Bearer {key}"),)


async def asked(pod: Pod, probe: str, hub: Served) -> bool:
    """What the kubelet learns by a probe of the container, which knows no certificates."""
    way = pod.container[probe]
    if "grpc" in way:
        async with channel_to(hub.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_TIMEOUT_S)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
    assert way["httpGet"]["port"] == "metrics"
    url = hub.metrics_url.removesuffix("/metrics") + way["httpGet"]["path"]
    try:
        answered = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=CALL_TIMEOUT_S).status)
    except urllib.error.HTTPError as refused:
        answered = refused.code
    return bool(answered == 200)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_a_rendering_is_of_this_chart(values: Path) -> None:
    first = (RENDERED / values.name).read_text().partition("\n")[0]
    assert first == f"# chart and values: {chart_digest(values)}", "`make acceptance-helm WRITE=1` renders anew"


def test_the_chart_is_of_this_version_and_ships_the_policy_of_the_plain_manifests() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__
    for name in ("policy.yaml", "sources.yaml"):
        assert (CHART / "files" / name).read_text() == (ROOT / "deploy" / "kubernetes" / name).read_text()


def test_every_value_has_a_type_and_a_line_in_the_table() -> None:
    values, schema = (
        yaml.safe_load((CHART / "values.yaml").read_text()),
        json.loads((CHART / "values.schema.json").read_text()),
    )
    page = (CHART / "README.md").read_text()

    def walk(value: Any, types: Any, path: str) -> None:
        assert types, f"{path} has no type"
        if isinstance(value, dict) and "properties" in types:
            assert types["additionalProperties"] is False, path
            assert value.keys() == types["properties"].keys() - {"global"}, path
            for name, inner in value.items():
                walk(inner, types["properties"][name], f"{path}.{name}".lstrip("."))
        else:
            assert f"`{path}`" in page, f"{path} is not in README.md"

    walk(values, schema, "")


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_a_pod_has_settings_of_the_hub_no_privileges_and_time_to_leave(values: Path, tmp_path: Path) -> None:
    pod = pod_of(values.stem, tmp_path / "pod")
    pod.mount()
    environment = pod.environment()
    settings = load_settings(Path(environment["TOOLHUB_CONFIG"]), environment)
    spec, container = pod.spec, pod.container
    wanted = yaml.safe_load(values.read_text())
    by_default = ["spiffe"] if wanted.get("tls", {}).get("spiffe") else ["api-key"]
    assert settings.auth.modes == tuple(wanted.get("settings", {}).get("auth", {}).get("modes", by_default))
    assert settings.logs.format == wanted.get("settings", {}).get("logs", {}).get("format", "json")
    assert settings.has_tls is not settings.server.allow_plaintext
    assert bool(settings.stores.postgres_url) is (settings.stores.kind == "postgres") is ("postgres" in str(wanted))
    leaves_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    leaves_s += settings.server.drain_notice_s + settings.server.drain_s
    assert pod.grace_s() >= leaves_s + 20
    assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["securityContext"]["runAsNonRoot"] is True
    for each in (container, *spec.get("initContainers", ())):
        walls = each["securityContext"]
        assert walls["readOnlyRootFilesystem"] is True
        assert walls["allowPrivilegeEscalation"] is False
        assert walls["capabilities"] == {"drop": ["ALL"]}
        assert not [mount for mount in each["volumeMounts"] if "subPath" in mount], "would not follow a change"
    for probe in ("startupProbe", "readinessProbe"):
        assert ("grpc" in container[probe]) is settings.server.allow_plaintext, "the kubelet speaks no TLS to gRPC"
    assert "hidden-word" not in (RENDERED / values.name).read_text()


def test_replicas_start_with_the_same_keys_which_only_the_hub_can_read(tmp_path: Path) -> None:
    for name in ("redis-autoscaled", "postgres"):
        pod = pod_of(name, tmp_path / name)
        pod.mount()
        for key, text in GIVEN["toolhub_shared"].items():
            assert (pod.folder / "data" / key).read_bytes() == text
            assert (pod.folder / "data" / key).stat().st_mode & 0o777 == 0o600
        (pod.folder / "data" / "plan.key").write_text("d" * 64)
        pod.mount()
        assert (pod.folder / "data" / "plan.key").read_text() == "d" * 64, "what stands there stays"


def test_a_gateway_is_given_every_service_of_the_contract_and_nothing_else(tmp_path: Path) -> None:
    pod = pod_of("tls", tmp_path)
    (rule,) = pod.one("GRPCRoute")["spec"]["rules"]
    assert {match["method"]["service"] for match in rule["matches"]} == SERVICES
    ports = {port["name"]: port["port"] for port in pod.one("Service", "toolhub")["spec"]["ports"]}
    (mcp,) = pod.one("HTTPRoute")["spec"]["rules"]
    backends = [each["backendRefs"] for each in (rule, mcp)]
    assert backends == [[{"name": "toolhub", "port": ports[name]}] for name in ("grpc", "mcp")]
    paths = [match["path"]["value"] for match in mcp["matches"]]
    assert paths == ["/mcp", "/.well-known/oauth-protected-resource", "/login/"]


PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
WRITE = request("core/fs.writeText", {"path": "note.txt", "text": "hello"})


@pytest.mark.promise("deploy.chart-policy")
async def test_a_hub_runs_with_the_policy_of_the_chart_and_follows_it(tmp_path: Path) -> None:
    keys, credentials = a_key(tmp_path / "operator")
    pod = pod_of("trusted-network", tmp_path / "pod", toolhub_keys={"api-keys.yaml": keys})
    pod.mount()
    environment = {**pod.environment(), "TOOLHUB_POLICY_RELOAD_S": "0.05", **AT_ONCE}
    async with (
        served(pod.folder / "data", *pod.arguments(), environment=environment) as hub,
        channel_to(hub.address) as channel,
    ):
        assert [await asked(pod, probe, hub) for probe in PROBES] == [True, True, True]
        stub = ToolServiceStub(channel)
        granted = await stub.Invoke(WRITE, metadata=credentials, timeout=CALL_TIMEOUT_S)
        assert granted.result.ok, granted.result.error
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.Invoke(WRITE, timeout=CALL_TIMEOUT_S)
        assert unknown.value.code() is grpc.StatusCode.UNAUTHENTICATED
        pod.set_file("toolhub-policy", "policy.yaml", "extends: none\nroles: [{principals: [me], roles: [agent]}]\n")
        await hub.logged("policy_loaded", 2)
        withdrawn = await stub.Invoke(WRITE, metadata=credentials, timeout=CALL_TIMEOUT_S)
        assert [withdrawn.result.ok, withdrawn.result.error.kind] == [False, POLICY_DENIED]


async def test_under_tls_the_hub_of_the_chart_is_probed_and_called_with_certificates(tmp_path: Path) -> None:
    keys, credentials = a_key(tmp_path / "operator")
    authority, agents = Authority(), Authority()
    own, agent = authority.sign("localhost"), agents.sign("agent")
    pod = pod_of(
        "tls",
        tmp_path / "pod",
        toolhub_keys={"api-keys.yaml": keys},
        toolhub_tls={"tls.crt": own.certificate, "tls.key": own.key},
        agents_ca={"ca.crt": agents.pem},
    )
    pod.mount()
    environment = {**pod.environment(), **AT_ONCE}
    shown = grpc.ssl_channel_credentials(authority.pem, agent.key, agent.certificate)
    async with served(pod.folder / "data", *pod.arguments(), environment=environment, listen="localhost:0") as hub:
        assert [await asked(pod, probe, hub) for probe in PROBES] == [True, True, True]
        async with channel_to(hub.address, shown) as channel:
            answer = await ToolServiceStub(channel).Invoke(WRITE, metadata=credentials, timeout=CALL_TIMEOUT_S)
            assert answer.result.ok, answer.result.error
        for without in (None, grpc.ssl_channel_credentials(authority.pem)):
            async with channel_to(hub.address, without) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await ToolServiceStub(channel).Invoke(WRITE, metadata=credentials, timeout=CALL_TIMEOUT_S)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
