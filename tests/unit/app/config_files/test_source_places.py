"""Files that sources.yaml names are resolved from its folder, not from the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolhub_service.adapters.comfyui.kind import ComfyUiSource
from toolhub_service.adapters.langchain.kind import LangChainSource
from toolhub_service.adapters.mcp.kind import McpSource
from toolhub_service.adapters.n8n.kind import N8nSource
from toolhub_service.app.config_files.sources_file import read_sources
from toolhub_service.sections.source_config import SecretRef, resolve_value

TEXT = """
sources:
  files:
    command: ./bin/server
    args: [--root, docs, {file: secrets/root}]
    env: {TOKEN: {file: secrets/token, prefix: "Bearer "}, PLAIN: secrets/plain}
    cwd: work
  far:
    url: https://mcp.example.com/mcp
    oauth: {client_id: hub, private_key: {file: keys/hub.pem}}
    tls: {ca_file: ca.pem, certificate_file: /etc/hub.pem, key_file: ~/hub.key}
  desk: {kind: langchain, load: ["a.b:c"], args: {file: data.csv}}
  crm:
    kind: n8n
    url: {file: secrets/url}
    workflows:
      send: {webhook: send, headers: {X-Key: {file: secrets/send}}, input_schema: {properties: {file: {const: a}}}}
  images:
    kind: comfyui
    backends: {gpu: {url: http://gpu, headers: {X-Key: {env: KEY}}}}
    templates: [templates, /srv/scale.yaml, ../shared/blur.yaml]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "etc" / "secrets").mkdir(parents=True)
    (tmp_path / "etc" / "sources.yaml").write_text(TEXT)
    (tmp_path / "etc" / "secrets" / "token").write_text("t0ken\n")
    return tmp_path / "etc"


@pytest.fixture(params=["whole", "from elsewhere", "from beside it"])
def named(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file as somebody names it."""
    if request.param == "whole":
        return folder / "sources.yaml"
    monkeypatch.chdir(folder if request.param == "from beside it" else folder.parent)
    return Path("sources.yaml" if request.param == "from beside it" else "etc/sources.yaml")


def test_paths_count_from_the_folder_of_the_file(folder: Path, named: Path) -> None:
    files, far, desk, crm, images = read_sources(named).sources.values()
    assert isinstance(files, McpSource)
    assert isinstance(far, McpSource)
    assert isinstance(desk, LangChainSource)
    assert isinstance(crm, N8nSource)
    assert isinstance(images, ComfyUiSource)
    assert files.env["TOKEN"] == SecretRef(file=str(folder / "secrets/token"), prefix="Bearer ")
    assert (files.args[2], files.cwd) == (SecretRef(file=str(folder / "secrets/root")), str(folder / "work"))
    assert far.oauth is not None
    assert far.oauth.private_key == SecretRef(file=str(folder / "keys/hub.pem"))
    tls = far.tls
    assert (tls.ca_file, tls.certificate_file) == (str(folder / "ca.pem"), "/etc/hub.pem")
    assert tls.key_file == str(Path("~/hub.key").expanduser())
    assert crm.url == SecretRef(file=str(folder / "secrets/url"))
    assert crm.workflows["send"].headers["X-Key"] == SecretRef(file=str(folder / "secrets/send"))
    assert images.templates == (str(folder / "templates"), "/srv/scale.yaml", str(folder / "../shared/blur.yaml"))


def test_a_value_that_is_no_path_stays_as_it_is(folder: Path, named: Path) -> None:
    files, _, desk, crm, images = read_sources(named).sources.values()
    assert isinstance(files, McpSource)
    assert isinstance(desk, LangChainSource)
    assert isinstance(crm, N8nSource)
    assert isinstance(images, ComfyUiSource)
    assert (files.command, files.args[:2], files.env["PLAIN"]) == ("./bin/server", ("--root", "docs"), "secrets/plain")
    assert desk.args == {"file": "data.csv"}
    assert crm.workflows["send"].input_schema == {"properties": {"file": {"const": "a"}}}
    assert images.backends["gpu"].headers["X-Key"] == SecretRef(env="KEY")


def test_a_secret_beside_the_file_is_found_from_anywhere(folder: Path, named: Path) -> None:
    files = read_sources(named).sources["files"]
    assert isinstance(files, McpSource)
    assert resolve_value(files.env["TOKEN"]) == "Bearer t0ken"
