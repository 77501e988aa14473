"""`toolhub sources add --kind n8n|comfyui`: workflows on a command line become sources, once they are checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result

from tests.unit.adapters.comfyui.template_files import write
from toolhub_service.adapters.comfyui.kind import ComfyUiSource
from toolhub_service.adapters.n8n.kind import N8nSource
from toolhub_service.app.config_files.sources_file import read_sources
from toolhub_service.cli.root import toolhub
from toolhub_service.sections.source_config import SecretRef, resolve_value

N8N = ("add", "flows", "--kind", "n8n", "--url", "https://n8n.example.com")
COMFYUI = ("add", "images", "--kind", "comfyui", "--url", "http://gpu-1:8188")
KEY = "n8n_api_" + "c4nary" * 6


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLHUB_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


def cli(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(toolhub, ["sources", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def run(*words: str, code: int = 0) -> Any:
    return json.loads(cli(*words, "--json", code=code).stdout)


def written(home: Path) -> dict[str, Any]:
    return dict(read_sources(home / "data" / "sources.yaml").sources)


def test_webhooks_and_jobs_of_an_n8n_become_its_tools(home: Path) -> None:
    key = "{env: N8N_KEY}"
    answer = run(*N8N, "--api-key", key, "--webhook", "send=/send-message", "--job", "render=render-it")
    flows = written(home)["flows"]
    assert isinstance(flows, N8nSource)
    assert (flows.url, flows.api_key) == ("https://n8n.example.com", SecretRef(env="N8N_KEY"))
    assert {name: (each.webhook, each.mode) for name, each in flows.workflows.items()} == {
        "send": ("send-message", "sync"),
        "render": ("render-it", "async"),
    }
    assert answer["grant"] == 'grants: [{principals: ["local"], capabilities: ["n8n:flows"]}]'
    assert any("flows/send: it has no input_schema" in note for note in answer["added"][0]["notes"])


def test_the_grant_leaves_the_principal_to_the_operator_where_each_has_a_key(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLHUB_AUTH_MODES", "api-key")
    answer = run(*N8N, "--webhook", "send=/send-message")
    assert answer["grant"] == 'grants: [{principals: ["PRINCIPAL"], capabilities: ["n8n:flows"]}]'


@pytest.mark.parametrize(("words", "tags"), [(("--discover",), ()), (("--tag", "a", "--tag", "b"), ("a", "b"))])
def test_an_n8n_whose_workflows_are_discovered_needs_no_names(
    home: Path, words: tuple[str, ...], tags: tuple[str, ...]
) -> None:
    run(*N8N, "--api-key", "{file: /run/secrets/n8n}", *words, "--trust", "approval")
    flows = written(home)["flows"]
    assert flows.discover.tags == tags
    assert (flows.trust, flows.api_key) == ("approval", SecretRef(file="/run/secrets/n8n"))


def test_keys_and_headers_in_the_clear_go_into_files_of_their_own(home: Path) -> None:
    words = (*N8N, "--api-key", KEY, "--header", f"X-Hub-Token: {KEY}2", "--header", "X-Team: red", "--webhook", "a=b")
    answer = cli(*words)
    flows = written(home)["flows"]
    assert KEY not in answer.output + (home / "data" / "sources.yaml").read_text()
    assert (resolve_value(flows.api_key), resolve_value(flows.headers["X-Hub-Token"])) == (KEY, f"{KEY}2")
    assert flows.headers["X-Team"] == "red"
    assert Path(flows.api_key.file).stat().st_mode & 0o777 == 0o600


def test_templates_of_a_comfyui_are_named_by_their_full_paths(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    path = write(home)
    answer = run(*COMFYUI, "--template", path.name, "--header", "Authorization: Bearer {env: GPU_TOKEN}")
    images = written(home)["images"]
    assert isinstance(images, ComfyUiSource)
    assert images.templates == (str(path),)
    assert images.headers == {"Authorization": SecretRef(env="GPU_TOKEN", prefix="Bearer ")}
    assert "comfyui:images" in answer["grant"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((*COMFYUI, "--template", "nowhere.yaml"), "nowhere.yaml: the file does not exist"),
        ((*COMFYUI, "--template", "."), "there is no sidecar"),
        ((*N8N, "--job", "render=x"), "async needs the source's `api_key`"),
        ((*N8N, "--discover"), "requires `api_key`"),
        ((*N8N, "--webhook", "send=webhook-test/x"), "Production URL"),
        ((*N8N, "--webhook", "send=../x"), "must be a path"),
        (("add", "flows", "--kind", "n8n", "--url", "n8n.example.com", "--webhook", "a=b"), "must begin with http"),
        (("add", "flows", "--kind", "n8n", "--url", "https://n/webhook", "--webhook", "a=b"), "it is the base"),
    ],
)
def test_a_source_that_no_hub_could_use_is_refused_and_nothing_is_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], why: str
) -> None:
    (home / "empty").mkdir()
    monkeypatch.chdir(home / "empty")
    answer = run(*words, code=1)
    assert why in " ".join(answer["refused"].values())
    assert not (home / "data").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("add", "x", "--kind", "n8n"), "--kind n8n goes with --url"),
        (("add", "x", "--kind", "comfyui", "--", "npx"), "--kind comfyui goes with --url"),
        (N8N, "--webhook NAME=PATH"),
        (COMFYUI, "--template"),
        ((*COMFYUI, "--template", "a", "--trust", "always"), "--trust"),
        ((*COMFYUI, "--webhook", "a=b"), "--webhook goes with --kind n8n"),
        ((*N8N, "--template", "a"), "--template goes with --kind comfyui"),
        (("add", "x", "--url", "https://a", "--api-key", "k"), "--api-key goes with --kind n8n"),
        ((*N8N, "--webhook", "send"), "NAME=VALUE"),
    ],
)
def test_contradicting_options_are_refused(home: Path, words: tuple[str, ...], why: str) -> None:
    assert why in cli(*words, code=2).output


def test_a_dry_run_shows_and_writes_nothing(home: Path) -> None:
    answer = run(*N8N, "--webhook", "send=send", "--dry-run")
    assert answer["dryRun"] is True
    assert answer["added"][0]["source"]["workflows"] == {"send": {"webhook": "send"}}
    assert not (home / "data").exists()


def test_a_tool_of_the_same_name_is_replaced_only_on_request(home: Path) -> None:
    run(*N8N, "--webhook", "send=send")
    assert "--replace" in run(*N8N, "--webhook", "other=other", code=1)["refused"]["flows"]
    run(*N8N, "--webhook", "other=other", "--replace")
    assert list(written(home)["flows"].workflows) == ["other"]


def test_servers_of_another_client_are_mcp_whatever_their_description(home: Path) -> None:
    file = home / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"a": {"url": "https://a.example", "kind": "n8n"}}}))
    run("add", str(file))
    assert "kind" not in yaml.safe_load((home / "data" / "sources.yaml").read_text())["sources"]["a"]


def test_kinds_are_completed() -> None:
    found = BashComplete(toolhub, {}, "toolhub", "X").get_completions(["sources", "add", "x", "--kind"], "")
    assert [item.value for item in found] == ["mcp", "n8n", "comfyui"]
