"""What is refused of entries of n8n and ComfyUI, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from toolhub_service.app.config_files.sources_file import to_source, values_of
from toolhub_service.sections.source_config import SecretRef, SourceInvalid

N8N: dict[str, Any] = {"kind": "n8n", "url": "https://n8n.example.com", "workflows": {"send": {"webhook": "send"}}}
COMFYUI: dict[str, Any] = {"kind": "comfyui", "url": "http://gpu:8188", "templates": ["/srv/templates"]}
KEY = {"api_key": {"env": "N8N_KEY"}}


@pytest.mark.parametrize("entry", [N8N, N8N | KEY | {"discover": {}}, N8N | KEY | {"workflows": {}, "discover": {}}])
def test_an_n8n_server_with_workflows_or_discovery_is_a_source(entry: dict[str, Any]) -> None:
    assert to_source("crm", entry).timeout_s == 60.0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"url": ""}, "crm.url: must not be empty"),
        ({"url": "n8n.example.com"}, "crm.url: must begin with http:// or https://"),
        ({"workflows": {}}, "needs `workflows`, or `discover: {}`"),
        ({"discover": {}}, "crm.discover: requires `api_key`"),
        ({"workflows": {"send": {}}}, "workflows.send: needs `webhook`, or `workflow_id`"),
        ({"workflows": {"send": {"workflow_id": "w1"}}}, "workflows.send.workflow_id: without `webhook` it needs"),
        ({"workflows": {"send": {"webhook": "x", "mode": "async"}}}, "workflows.send.mode: async needs the source's"),
        ({"workflows": {"send": {"webhook": "https://x"}}}, "workflows.send.webhook: must be a path"),
        ({"workflows": {"send": {"webhook": "a/../b"}}}, "workflows.send.webhook: must be a path"),
        (
            {"workflows": {"send": {"webhook": "x", "method": "GET", "idempotency_field": "k"}}},
            "workflows.send.idempotency_field: a GET has no body",
        ),
        ({"workflows": {"send": {"webhok": "x"}}}, "unknown key `webhok`; did you mean `webhook`?"),
        ({"workflows": {"send it": {"webhook": "x"}}}, "crm.workflows: a name in it has other characters"),
        ({"api_key": {}}, "crm.api_key: needs exactly one of `env` and `file`"),
        (
            {"workflows": {"send": {"webhook": "x", "headers": {"A": {"env": "A", "file": "b"}}}}},
            "crm.workflows.send.headers.A: needs exactly one of",
        ),
    ],
)
def test_an_entry_of_n8n_that_cannot_be_meant_is_refused_with_its_place(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(SourceInvalid) as refused:
        to_source("crm", N8N | change)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"url": ""}, "images: needs exactly one of `url` and `backends`"),
        ({"backends": {"a": {"url": "http://a"}}}, "images: needs exactly one of `url` and `backends`"),
        ({"url": "", "backends": {"a": {}}}, "images"),
        ({"url": "", "backends": {"a": {"url": "ftp://a"}}}, "images.backends.a.url: must begin with"),
        (
            {"url": "", "backends": {"a": {"url": "http://a"}}, "headers": {"A": "b"}},
            "images.headers: not allowed with `backends`",
        ),
        ({"templates": []}, "images.templates: list the sidecar files or folders"),
        ({"read_timeout_s": 1}, "images.read_timeout_s"),
        (
            {"url": "", "backends": {"a": {"url": "http://a"}}, "auth": {"per_user": {"kind": "header"}}},
            "images.auth: not allowed with `backends`",
        ),
        (
            {"auth": {"per_user": {"kind": "exchange", "token_url": "https://id", "client_id": "hub"}}},
            "images.auth.per_user.kind: its tools run as jobs, which keep no token",
        ),
    ],
)
def test_an_entry_of_comfyui_that_cannot_be_meant_is_refused_with_its_place(
    change: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SourceInvalid) as refused:
        to_source("images", COMFYUI | change)
    assert expected in str(refused.value)


def test_every_value_that_may_stand_elsewhere_is_known_by_its_place() -> None:
    held = {"env": "X"}
    n8n = to_source("crm", N8N | KEY | {"workflows": {"send": {"webhook": "x", "headers": {"A": held}}}})
    backends = {"gpu": {"url": "http://gpu:8188", "headers": {"B": held}}}
    comfyui = to_source("images", COMFYUI | {"url": "", "backends": backends})
    assert values_of(n8n)["workflows.send.headers.A"] == SecretRef(env="X")
    assert set(values_of(n8n)) == {"url", "api_key", "workflows.send.headers.A"}
    assert set(values_of(comfyui)) == {"backends.gpu.url", "backends.gpu.headers.B"}
