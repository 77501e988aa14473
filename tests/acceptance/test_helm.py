"""Helm renders the chart; every manifest of it and of deploy/kubernetes is one of the API, with nothing that it lacks.

`make acceptance-helm` builds Helm and fetches the schemas; WRITE=1 writes down what is rendered, for the tests that
start hubs with it (tests/unit/deploy/test_chart.py). Schemas of what is not Kubernetes' own (Gateway API, Prometheus
operator, Istio) come from the modules that define it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.e2e.terminal import ROOT
from tests.unit.deploy.test_chart import CHART, RENDERED, VALUES, chart_digest

TOOLS: Final = ROOT / ".venv" / "examples" / "helm"
MODULES: Final = {
    "sigs.k8s.io/gateway-api@v1.6.3": "config/crd/standard/*.yaml",
    "github.com/prometheus-operator/prometheus-operator@v0.92.1": "example/prometheus-operator-crd/*monitors.yaml",
    "istio.io/api@v1.31.4": "kubernetes/customresourcedefinitions.gen.yaml",
}
"""Where definitions of resources stand in modules."""
REFUSED: Final = {
    "": "allowPlaintext=true",
    "allowPlaintext=true,tls.clientCaSecret=ca": "needs tls.existingSecret",
    "allowPlaintext=true,replicas=2": "need a shared store",
    "allowPlaintext=true,autoscaling.enabled=true": "need a shared store",
    "allowPlaintext=true,replicas=2,stores.postgres.existingSecret=p": "one audit log",
    "allowPlaintext=true,persistence.enabled=false,stores.postgres.existingSecret=p": "persistence.enabled=true",
    "allowPlaintext=true,apiKeys.existingSecret=": "Nobody could call",
    "allowPlaintext=true,settings.server.listen=0.0.0.0:1": "are the chart's",
    "allowPlaintext=true,settings.metrics.listen=0.0.0.0:1": "are the chart's",
    "allowPlaintext=true,replica=2": "'replica' not allowed",
    "allowPlaintext=true,gateway.grpc.enabled=true": "parentRefs",
    "allowPlaintext=true,shutdown.preStopSeconds=0": "preStopSeconds",
    "allowPlaintext=true,image.digest=latest": "digest",
}
"""Values that would make a release that does not work, or not safely, and a part of what Helm then says."""


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TOOLS / "helm", *words], capture_output=True, text=True, timeout=300, check=False)


def rendered(values: Path, folder: Path) -> str:
    """With a version that stays the same, so that a new one of the chart changes no line."""
    chart = folder / "toolhub"
    shutil.copytree(CHART, chart)
    named = re.sub(r"(?m)^(version|appVersion): .*", r'\1: "0.0.0"', (chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(named)
    done = helm("template", "toolhub", chart, "--namespace", "tool-hub", "--values", values)
    assert (done.returncode, done.stderr) == (0, "")
    return f"# chart and values: {chart_digest(values)}\n{done.stdout}"


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_helm_finds_nothing_wrong_and_renders_what_the_tests_run(values: Path, tmp_path: Path) -> None:
    linted = helm("lint", "--strict", CHART, "--values", values)
    assert linted.returncode == 0, linted.stdout
    text = rendered(values, tmp_path)
    if os.environ.get("TEST_WRITE") == "1":
        (RENDERED / values.name).write_text(text)
    assert (RENDERED / values.name).read_text() == text


@pytest.mark.parametrize(("values", "words"), REFUSED.items())
def test_a_release_that_would_not_work_is_refused_with_a_reason(values: str, words: str) -> None:
    done = helm("template", "toolhub", CHART, *(["--set", values] if values else []))
    assert done.returncode != 0
    assert words in done.stderr


def test_the_notes_list_the_next_steps(tmp_path: Path) -> None:
    """As a file of the release: Helm shows notes only after it has asked a cluster."""
    chart = tmp_path / "toolhub"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "notes")
    (chart / "templates" / "notes.yaml").write_text('notes: {{ tpl (.Files.Get "notes") . | toJson }}')
    shown = ("--set", "allowPlaintext=true", "--show-only", "templates/notes.yaml")
    done = helm("template", "toolhub", chart, *shown)
    assert done.returncode == 0, done.stderr
    notes = yaml.safe_load(done.stdout)["notes"]
    assert "toolhub keys create me" in notes
    assert "dns:///toolhub-pods.default:50051" in notes
    assert helm("package", CHART, "--destination", tmp_path).returncode == 0


PLAIN: Final = sorted(
    path
    for path in (ROOT / "deploy" / "kubernetes").glob("*.yaml")
    if path.name not in ("toolhub.yaml", "policy.yaml", "sources.yaml", "kustomization.yaml")
)


@cache
def definitions() -> dict[tuple[str, str], Any]:
    """(apiVersion, kind) of resources that extend Kubernetes, and their schemas."""
    found = {}
    for module, pattern in MODULES.items():
        result = subprocess.run(
            ["go", "mod", "download", "-json", module],
            env={**os.environ, "GOFLAGS": "-mod=mod"},
            cwd=TOOLS,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        for path in Path(json.loads(result.stdout)["Dir"]).glob(pattern):
            for each in yaml.safe_load_all(path.read_text()):
                if each and each["kind"] == "CustomResourceDefinition":
                    spec = each["spec"]
                    for version in spec["versions"]:
                        name = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                        found[name] = strict(version["schema"]["openAPIV3Schema"])
    return found


def strict(schema: Any) -> Any:
    """Of Kubernetes' dialect into that of JSON Schema, and no property that it does not name."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        name: {key: strict(inner) for key, inner in value.items()} if name == "properties" else strict(value)
        for name, value in schema.items()
        if not name.startswith("x-kubernetes") and name not in ("description", "default", "format", "nullable")
    }
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    if "properties" in made and made.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def problems(document: Any) -> Iterator[str]:
    """What is wrong with a resource that extends Kubernetes."""
    import jsonschema

    schema = definitions()[document["apiVersion"], document["kind"]]
    schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {"type": "object"}}
    for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
        yield f"{document['kind']}.{error.json_path}: {error.message}"


@pytest.mark.parametrize("file", [*(RENDERED / path.name for path in VALUES), *PLAIN], ids=lambda path: path.stem)
def test_every_manifest_is_one_of_the_api(file: Path, tmp_path: Path) -> None:
    documents = [each for each in yaml.safe_load_all(file.read_text()) if each]
    own = [each for each in documents if "." not in each["apiVersion"].partition("/")[0].removesuffix(".k8s.io")]
    (tmp_path / "own.yaml").write_text(yaml.safe_dump_all(own))
    validate = [str(TOOLS / "venv" / "bin" / "kubernetes-validate"), "--strict", str(tmp_path / "own.yaml")]
    done = subprocess.run(validate, capture_output=True, text=True, timeout=300, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert printed.count("passed for resource") == len(own), printed
    assert [problem for each in documents if each not in own for problem in problems(each)] == []


def yaml_blocks(page: Path) -> list[Any]:
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    documents = [each for block in blocks for each in yaml.safe_load_all(block)]
    return [each for each in documents if isinstance(each, dict) and "apiVersion" in each]


def test_the_manifests_of_the_page_are_ones_of_their_apis() -> None:
    shown = [each for each in yaml_blocks(ROOT / "docs" / "kubernetes.md") if "istio" in each["apiVersion"]]
    assert {each["kind"] for each in shown} >= {"PeerAuthentication", "DestinationRule"}
    assert [problem for each in shown for problem in problems(each)] == []


COMPOSE: Final = ROOT / "deploy"


@pytest.mark.parametrize("beside", [[], ["redis"], ["postgres"], ["tls"], ["redis", "postgres", "tls"]])
def test_compose_reads_its_files(beside: list[str]) -> None:
    files = ["compose.yaml", *(f"compose.{name}.yaml" for name in beside)]
    words = [word for file in files for word in ("--file", str(COMPOSE / file))]
    done = subprocess.run(
        [TOOLS / "venv" / "bin" / "docker-compose", *words, "config", "--format", "json"],
        env={**os.environ, "POSTGRES_PASSWORD": "a-word"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    volumes = [volume for each in services.values() for volume in each.get("volumes", ())]
    sources = [Path(volume["source"]) for volume in volumes if volume["type"] == "bind"]
    assert [source for source in sources if not source.exists() and source.name != "tls"] == []


def test_hadolint_finds_nothing_wrong_with_the_dockerfile() -> None:
    command = [TOOLS / "venv" / "bin" / "hadolint", ROOT / "Dockerfile"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")
