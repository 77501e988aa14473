"""What deploy/ names exists: metrics, settings, services, probes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import yaml
from google.protobuf import descriptor_pb2

from tests.hub import CALL_TIMEOUT_S, channel_to, request
from tests.processes import served
from tests.unit.deploy.pods import Pod
from tests.unit.docs.pages_of_docs import anchors
from toolhub.v1.tool_service_pb2_grpc import ToolServiceStub
from toolhub_service.app.config_files.key_file import KeyFile
from toolhub_service.settings.loading import load_settings
from toolhub_service.telemetry.names import METRICS, Metric, MetricKind

DEPLOY = Path(__file__).parents[3] / "deploy"
DOCKERFILE = DEPLOY.parent / "Dockerfile"
FILES = [path for path in sorted(DEPLOY.rglob("*.y*ml")) if path.parent.name != "templates"]
Started = tuple[Path, list[str], dict[str, str]]
"""Data folder, arguments and environment of a hub."""
SUFFIXES = {MetricKind.HISTOGRAM: ("_bucket", "_count", "_sum")}


def exported(metric: Metric) -> list[str]:
    return [metric.name + suffix for suffix in SUFFIXES.get(metric.kind, ("",))]


EXPORTED = {name for metric in METRICS for name in exported(metric)}
OURS = re.compile(r"\b(?:tool|toolhub|policy|grpc_server|mcp_server)_[a-z0-9_]+\b")


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def rules() -> list[dict[str, Any]]:
    (found,) = documents(DEPLOY / "prometheus" / "rules.yaml")
    return [rule for group in found["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana" / "toolhub.json").read_text())  # type: ignore[no-any-return]


def expressions() -> list[str]:
    panels = dashboard()["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]] + [rule["expr"] for rule in rules()]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_names_only_metrics_that_the_hub_exports(expression: str) -> None:
    without_labels = re.sub(r"\{[^}]*\}|by \([^)]*\)", "", expression)
    named = set(OURS.findall(without_labels))
    assert named <= EXPORTED
    assert named or "toolhub:" in expression or "up{" in expression


def test_every_alert_states_severity_cause_and_remedy() -> None:
    for alert in (rule for rule in rules() if "alert" in rule):
        assert alert["labels"]["severity"] in {"page", "ticket"}, alert["alert"]
        assert alert["annotations"].keys() == {"summary", "description", "runbook"}, alert["alert"]
        assert all(alert["annotations"].values()), alert["alert"]


def test_the_dashboard_begins_with_a_row_of_figures_and_describes_every_panel() -> None:
    panels = dashboard()["panels"]
    top = [panel for panel in panels if panel["gridPos"]["y"] == 0]
    assert {panel["type"] for panel in top} == {"stat"}
    assert sum(panel["gridPos"]["w"] for panel in top) == 24
    assert all(panel["description"].endswith(".") for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)


def test_the_variables_of_the_dashboard_choose_in_every_panel_whose_metrics_have_the_label() -> None:
    variables = {variable["name"]: variable for variable in dashboard()["templating"]["list"]}
    assert variables.keys() == {"datasource", "instance", "tool", "source", "principal"}
    labels = {name: set(metric.labels) for metric in METRICS for name in exported(metric)}
    for panel in dashboard()["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            for name, selector in re.findall(
                r"\b((?:toolhub|grpc_server|mcp_server)_[a-z_]+)\{([^}]*)\}", target["expr"]
            ):
                chosen = set(re.findall(r'(\w+)=~"\$', selector))
                assert chosen == {"instance"} | ({"tool", "source", "principal"} & labels[name]), name


@pytest.mark.parametrize("rule", [rule for rule in rules() if "alert" in rule], ids=lambda rule: rule["alert"])
def test_an_alert_sums_by_labels_that_its_metrics_have(rule: dict[str, Any]) -> None:
    recorded = {each["record"]: each["expr"] for each in rules() if "record" in each}
    expression = " ".join([rule["expr"], *(expr for name, expr in recorded.items() if name in rule["expr"])])
    labels = {label for grouped in re.findall(r"by \(([^)]*)\)", expression) for label in grouped.split(", ")}
    shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    named = [metric for metric in METRICS if metric.name in expression]
    assert all(label in (*metric.labels, "le", "instance") for label in labels for metric in named)
    assert shown <= labels | {"instance"} | {label for metric in named for label in metric.labels}


@pytest.mark.parametrize("rule", [rule for rule in rules() if "alert" in rule], ids=lambda rule: rule["alert"])
def test_an_alert_has_its_line_in_the_runbook(rule: dict[str, Any]) -> None:
    assert rule["alert"] in (DEPLOY.parent / "docs" / "on-call.md").read_text()
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert page in ("docs/deploy.md", "docs/on-call.md", "docs/secure.md")
    assert anchor in anchors(DEPLOY.parent / page)


def test_lost_jobs_are_counted_by_cause_for_a_quarter_of_an_hour() -> None:
    (lost,) = (rule for rule in rules() if rule.get("alert") == "ToolHubJobsLost")
    assert lost["expr"] == "sum by (tool, cause) (increase(toolhub_jobs_lost_total[15m])) > 0"


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(DEPLOY.rglob("*.y*ml")) if path.parent.name != "templates"],
    ids=lambda path: path.name,
)
def test_every_file_is_yaml(path: Path) -> None:
    assert all(isinstance(document, dict) for document in documents(path))


def test_the_settings_of_the_cluster_are_settings_of_the_hub() -> None:
    settings = load_settings(DEPLOY / "kubernetes" / "toolhub.yaml", {})
    assert settings.auth.modes == ("api-key",)
    (pod,) = documents(DEPLOY / "kubernetes" / "statefulset.yaml")
    spec = pod["spec"]["template"]["spec"]
    leaves_s = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    leaves_s += settings.server.drain_notice_s + settings.server.drain_s
    assert spec["terminationGracePeriodSeconds"] >= leaves_s + 20


def test_the_cluster_applies_every_file() -> None:
    folder = DEPLOY / "kubernetes"
    (kustomization,) = documents(folder / "kustomization.yaml")
    named = {*kustomization["resources"], *kustomization["configMapGenerator"][0]["files"], "kustomization.yaml"}
    assert named == {path.name for path in folder.iterdir()}


def test_the_transcoder_serves_every_service_of_the_contract() -> None:
    (envoy,) = documents(DEPLOY / "envoy.yaml")
    (listener,) = envoy["static_resources"]["listeners"]
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    *_, strict, transcoder, _ = filters
    assert strict["typed_config"]["default_source_code"] == {"filename": "deploy/strict_json.lua"}
    described = descriptor_pb2.FileDescriptorSet.FromString((DEPLOY.parent / "gen" / "toolhub.binpb").read_bytes())
    services = {f"{file.package}.{service.name}" for file in described.file for service in file.service}
    assert set(transcoder["typed_config"]["services"]) == services


def test_the_container_of_envoy_has_every_file_that_its_configuration_names() -> None:
    (compose,) = documents(DEPLOY / "compose.yaml")
    mounted = {}
    for volume in compose["services"]["envoy"]["volumes"]:
        here, there, _ = volume.split(":")
        mounted[there] = DEPLOY / here
    assert all(path.exists() for path in mounted.values())
    named = set(
        re.findall(r"(?:filename|proto_descriptor): ((?:deploy|gen)/[\w./]+)", (DEPLOY / "envoy.yaml").read_text())
    )
    named |= set(re.findall(r'"(gen/[\w./]+)"', (DEPLOY / "strict_json.lua").read_text()))
    assert {f"/etc/envoy/{name}" for name in named} <= mounted.keys()


def compose_hub(folder: Path, keys: bytes) -> Started:
    """The hub of deploy/compose.yaml: the settings of its image, and what is mounted at /etc/toolhub."""
    (compose,) = documents(DEPLOY / "compose.yaml")
    hub = compose["services"]["toolhub"]
    mounted = next(volume for volume in hub["volumes"] if ":/etc/toolhub:" in volume)
    shipped, config, data = DEPLOY / mounted.partition(":")[0], folder / "config", folder / "data"
    for place in (config, data):
        place.mkdir(mode=0o700)
    for path in shipped.iterdir():
        (config / path.name).write_text(path.read_text())
    (data / "api-keys.yaml").touch(0o600)
    (data / "api-keys.yaml").write_bytes(keys)
    (image,) = re.findall(r"^COPY (deploy/\S+) (\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert f"TOOLHUB_CONFIG={image[1]}" in DOCKERFILE.read_text()
    environment = {"TOOLHUB_CONFIG": str(DEPLOY.parent / image[0]), **hub["environment"]}
    return data, [], {name: value.replace("/etc/toolhub", str(config)) for name, value in environment.items()}


def kubernetes_hub(folder: Path, keys: bytes) -> Started:
    """That of deploy/kubernetes, with the files of its ConfigMap."""
    manifests = DEPLOY / "kubernetes"
    (kustomization,) = documents(manifests / "kustomization.yaml")
    (generated,) = kustomization["configMapGenerator"]
    files = {name: (manifests / name).read_text() for name in generated["files"]}
    config_map = {"kind": "ConfigMap", "metadata": {"name": generated["name"]}, "data": files}
    pod = Pod(
        [config_map, *documents(manifests / "statefulset.yaml")], {"toolhub-keys": {"api-keys.yaml": keys}}, folder
    )
    pod.mount()
    return pod.folder / "data", pod.arguments(), pod.environment()


@pytest.mark.parametrize("manifests", [compose_hub, kubernetes_hub])
@pytest.mark.promise("deploy.first-call")
async def test_a_hub_that_is_started_from_the_manifests_allows_the_first_key_a_first_call(
    tmp_path: Path, manifests: Callable[[Path, bytes], Started]
) -> None:
    """Fails at befa727: neither mounted a policy, so that nobody might do anything."""
    key = KeyFile(tmp_path / "api-keys.yaml").create("me")
    (tmp_path / "pod").mkdir(mode=0o700)
    data, arguments, environment = manifests(tmp_path / "pod", (tmp_path / "api-keys.yaml").read_bytes())
    environment |= {"TOOLHUB_SERVER_DRAIN_NOTICE_S": "0"}  # no mesh has to notice that it leaves
    async with (
        served(data, *arguments, environment=environment, as_program=True) as hub,
        channel_to(hub.address) as channel,
    ):
        stub = ToolServiceStub(channel)
        call = request("core/fs.writeText", {"path": "note.txt", "text": "hello"})
        written = await stub.Invoke(call, metadata=(("authorization", f"Bearer {key}"),), timeout=CALL_TIMEOUT_S)
        assert written.result.ok, written.result.error
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Invoke(call, timeout=CALL_TIMEOUT_S)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_keys_cross_a_network_unencrypted_only_where_configured_with_a_reason() -> None:
    """The image by itself says nothing: the operator decides."""
    assert load_settings(DEPLOY / "kubernetes" / "toolhub.yaml", {}).server.allow_plaintext
    (compose,) = documents(DEPLOY / "compose.yaml")
    hub = compose["services"]["toolhub"]
    settings = load_settings(DEPLOY / "image.yaml", hub["environment"])
    assert settings.server.allow_plaintext
    assert all(port.startswith("127.0.0.1:") for port in hub["ports"]), "published on loopback alone"
    image = load_settings(DEPLOY / "image.yaml", {})
    assert not image.server.allow_plaintext
    assert image.auth.modes == ("api-key",)
    assert "TOOLHUB_SERVER" not in DOCKERFILE.read_text(), "would win over the settings of a pod"
    (prometheus,) = documents(DEPLOY / "prometheus" / "prometheus.yml")
    (targets,) = [
        job["static_configs"][0]["targets"] for job in prometheus["scrape_configs"] if job["job_name"] == "toolhub"
    ]
    assert {target.partition(":")[0] for target in targets} <= {*settings.metrics.hosts}


def test_the_image_is_built_from_a_base_that_can_be_pinned_by_its_digest() -> None:
    """Fails at befa727: the base was written out twice."""
    lines = DOCKERFILE.read_text().splitlines()
    stages = [line for line in lines if line.startswith("FROM ")]
    assert stages == ["FROM ${PYTHON_IMAGE} AS build", "FROM ${PYTHON_IMAGE}"]
    first = next(line for line in lines if line and not line.startswith("#"))
    assert first.startswith("ARG PYTHON_IMAGE=python:3.11"), "before the first stage, so that each may use it"


def test_the_image_runs_as_an_unprivileged_user_from_existing_files_and_holds_no_secret() -> None:
    """What a builder would find out, which CI has none of."""
    text = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text())
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    last = dict(steps)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"]), "a number, which runAsNonRoot of Kubernetes can judge"
    assert {"HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "VOLUME"} <= last.keys()
    ignored = (DOCKERFILE.parent / ".dockerignore").read_text().splitlines()
    sent = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    for name, value in steps:
        assert name != "ADD", "takes URLs and unpacks archives"
        assert not re.search(r"(?i)\b\w*(secret|password|token|api_?key)\w*=", value), value
        if name == "COPY" and not value.startswith("--from=build"):
            for source in value.split()[:-1]:
                assert "*" in source or (DOCKERFILE.parent / source).exists(), source
                assert any(source.rstrip("*").startswith(given) for given in sent), (
                    f"{source} is not sent to the builder"
                )
    installs = [value for name, value in steps if name == "RUN" and "pip install" in value]
    assert all("--require-hashes" in value or "--no-index" in value for value in installs)


def test_a_volume_of_the_cluster_is_not_opened_to_its_group_at_each_start() -> None:
    """Fails at befa727: the kubelet adds group write to every file of a volume by default."""
    (pod,) = documents(DEPLOY / "kubernetes" / "statefulset.yaml")
    assert pod["spec"]["template"]["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def test_compose_with_tls_sends_nothing_in_the_clear_and_is_probed_anyway() -> None:
    (compose,), (tls,) = documents(DEPLOY / "compose.yaml"), documents(DEPLOY / "compose.tls.yaml")
    hub = tls["services"]["toolhub"]
    settings = load_settings(
        DEPLOY / "image.yaml", {**compose["services"]["toolhub"]["environment"], **hub["environment"]}
    )
    assert not settings.server.allow_plaintext
    (here, there, _) = hub["volumes"][0].split(":")
    files = {settings.server.tls.certificate_file, settings.server.tls.key_file}
    assert {str(Path(file).parent) for file in files} == {there}
    assert tls["services"]["envoy"]["volumes"][0].startswith(f"{here}:"), "one folder, one authority"
    (probe,) = re.findall(r"^HEALTHCHECK .* CMD (.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert json.loads(probe) == ["toolhub", "health", "--self"], "knows from the settings that TLS is on"


def test_the_collector_takes_what_hubs_send_and_every_part_of_it_is_used() -> None:
    (collector,) = documents(DEPLOY / "otel" / "collector.yaml")
    (compose,) = documents(DEPLOY / "compose.yaml")
    endpoint = compose["services"]["toolhub"]["environment"]["TOOLHUB_TRACING_OTLP_ENDPOINT"]
    listening = collector["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    assert endpoint == f"http://otel-collector:{listening.rpartition(':')[2]}"
    pipelines = collector["service"]["pipelines"].values()
    for part in ("receivers", "processors", "exporters"):
        assert {name for pipeline in pipelines for name in pipeline[part]} == collector[part].keys()
    assert all(pipeline["processors"][0] == "memory_limiter" for pipeline in pipelines)
    (sent_to,) = [it["endpoint"] for name, it in collector["exporters"].items() if name.startswith("otlp_grpc/")]
    assert sent_to.partition(":")[0] in compose["services"]


def test_the_image_is_made_with_its_bill_of_materials_and_its_provenance() -> None:
    result = subprocess.run(["make", "-n", "image"], cwd=DEPLOY.parent, capture_output=True, text=True, check=True)
    (last,) = [line for line in result.stdout.splitlines() if "--sbom=true" in line]
    assert "--provenance=mode=max" in last
    assert "type=oci" in last
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    let_in = {
        line.removeprefix("!") for line in (DEPLOY.parent / ".dockerignore").read_text().splitlines() if line[0] == "!"
    }
    assert {name.removesuffix("*") for line in copied for name in line.split()} <= let_in, "what the builder cannot see"
