"""`toolhub workflows check|init`: what workflows become, and everything wrong with them, without a server or a hub."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.e2e.terminal import environment, in_terminal
from tests.unit.adapters.comfyui.template_files import GRAPH, SIDECAR, property_of, sidecar, write
from tests.unit.adapters.comfyui.workflow.test_node_classes import INFO
from toolhub_service.cli.root import toolhub

CRM: dict[str, Any] = {
    "kind": "n8n",
    "url": "https://n8n.example.com",
    "api_key": {"env": "N8N_KEY_THAT_IS_NOT_SET"},
    "workflows": {
        "send_message": {
            "description": "Send a message to a customer.",
            "webhook": "send-message",
            "input_schema": {
                "type": "object",
                "additionalProperties": False,
                "required": ["text"],
                "properties": {"text": {"type": "string"}, "to": {"type": "string", "default": "all"}},
            },
            "output_schema": {"type": "object", "properties": {"id": {"type": "integer"}}},
        }
    },
}


def cli(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(toolhub, ["workflows", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def checked(*words: str, code: int = 0) -> Any:
    found = json.loads(cli("check", *words, "--json", code=code).stdout)
    assert found["ok"] is (code == 0)
    return found


def sources(folder: Path, **entries: Any) -> str:
    path = folder / "sources.yaml"
    path.write_text(yaml.safe_dump({"sources": entries}, sort_keys=False))
    return str(path)


def n8n(**changes: Any) -> dict[str, Any]:
    """The entry with its workflow changed; None takes a key out."""
    workflow = {**CRM["workflows"]["send_message"], **changes}
    kept = {key: value for key, value in workflow.items() if value is not None}
    return {**CRM, "workflows": {"send_message": kept}}


def nodes(folder: Path) -> str:
    path = folder / "nodes.info"
    path.write_text(json.dumps(INFO))
    return str(path)


def test_a_sidecar_is_shown_as_the_tool_that_it_becomes(tmp_path: Path) -> None:
    (tool,) = checked(str(write(tmp_path)))["tools"]
    assert (tool["name"], tool["kind"], tool["mode"]) == ("scale_image", "comfyui", "job")
    assert tool["arguments"]["image"] == "artifact id, required"
    assert tool["arguments"]["width"] == "integer 1 … 4096, required"
    assert tool["arguments"]["height"] == "integer 1 … 4096, else 512"
    assert tool["arguments"]["method"] == "nearest-exact | bilinear | area"
    assert tool["results"] == {"image": "1 to 4 files of node 3, image/png"}
    assert len(tool["facts"]["template"]) == len(tool["facts"]["graph"]) == 64


def test_every_problem_of_a_folder_is_reported_with_its_file(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "broken.json").write_text(json.dumps(sidecar(tool="other", bindings=[], unused=["/none"])))
    found = checked(str(tmp_path), code=1)
    assert [tool["name"] for tool in found["tools"]] == ["scale_image"]
    assert len(found["problems"]) == 5
    assert all(problem.startswith(str(tmp_path / "broken.json")) for problem in found["problems"])


def test_a_template_is_checked_against_the_servers_nodes(tmp_path: Path) -> None:
    narrow = write(tmp_path)
    assert checked(str(narrow), "--object-info", nodes(tmp_path))["tools"][0]["problems"] == []
    wide = write(tmp_path, sidecar(input_schema=property_of("width", type="integer", minimum=1)))
    (tool,) = checked(str(wide), "--object-info", nodes(tmp_path), code=1)["tools"]
    assert "say `maximum: 16384` or less" in tool["problems"][0]


@pytest.mark.parametrize("text", ["[]", '{"KSampler": 3}', "{"])
def test_a_malformed_answer_of_a_server_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(text)
    (problem,) = checked(str(write(tmp_path)), "--object-info", str(path), code=1)["problems"]
    assert problem.startswith(str(path))


def test_tools_of_sources_have_full_names_and_what_a_caller_must_hold(tmp_path: Path) -> None:
    write(tmp_path)
    images = {"kind": "comfyui", "url": "http://gpu-1:8188", "templates": [str(tmp_path / "scale.json")]}
    path = sources(tmp_path, images=images, crm=CRM, docs={"command": "docs"}, off={**CRM, "enabled": False})
    found = checked("--sources", path)["tools"]
    assert [(tool["name"], tool["capabilities"], tool["mode"]) for tool in found] == [
        ("images/scale_image", ["comfyui:images"], "job"),
        ("crm/send_message", ["n8n:crm"], "sync"),
    ]
    assert found[1]["arguments"] == {"text": "string, required", "to": "string, else all"}
    assert found[1]["results"] == {"id": "integer"}
    assert found[1]["facts"] == {"calls": "POST /webhook/send-message"}
    assert found[1]["warnings"] == []


def test_the_operators_terms_count(tmp_path: Path) -> None:
    write(tmp_path)
    images = {"kind": "comfyui", "url": "http://gpu-1:8188", "templates": [str(tmp_path / "scale.json")]}
    hidden = {**images, "tools": {"scale_*": {"offered": False}}}
    held = {**images, "tools": {"scale_*": {"capabilities": ["draw"]}}}
    found = checked("--sources", sources(tmp_path, hidden=hidden, held=held))["tools"]
    assert [(tool["name"], tool["capabilities"]) for tool in found] == [("held/scale_image", ["draw"])]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (n8n(webhook="webhook-test/abc"), "Production URL"),
        (n8n(webhook="webhook/abc"), "leave that out"),
        (n8n(input_schema={"type": "array"}), "`input_schema` cannot be used"),
        (n8n(input_schema={"type": "object", "properties": {"a": {"pattern": "("}}}), "`input_schema` cannot be used"),
        (n8n(output_schema={"type": 3}), "`output_schema` cannot be used"),
        (n8n(idempotency_field="text"), "which is an argument of callers, too"),
        (
            n8n(method="GET", input_schema={"type": "object", "properties": {"a": {"type": "object"}}}),
            "need not be plain",
        ),
    ],
)
def test_a_problem_of_an_n8n_workflow_is_reported_at_its_place(entry: Any, expected: str, tmp_path: Path) -> None:
    (tool,) = checked("--sources", sources(tmp_path, crm=entry), code=1)["tools"]
    assert tool["place"] == "sources.crm.workflows.send_message"
    assert expected in " ".join(tool["problems"])


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (n8n(description=None), "it has no description"),
        (n8n(input_schema=None), "it has no input_schema"),
        (n8n(input_schema={"type": "object"}), "additionalProperties: false"),
        ({**CRM, "api_key": ""}, "cannot be looked up"),
    ],
)
def test_a_probable_mistake_is_only_a_warning(entry: Any, expected: str, tmp_path: Path) -> None:
    (tool,) = checked("--sources", sources(tmp_path, crm=entry))["tools"]
    assert expected in " ".join(tool["warnings"])


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({**CRM, "url": "https://n8n.example.com/webhook/"}, "sources.crm.url: it is the base"),
        ({**CRM, "workflow": {}}, "unknown key `workflow`; did you mean `workflows`?"),
        (n8n(fails_when=[{"at": "ok"}]), "sources.crm.workflows"),
        (n8n(mode="later"), "sources.crm.workflows"),
        (
            {"kind": "comfyui", "url": "http://x:1", "templates": ["/none/a.yaml"]},
            "/none/a.yaml: the file does not exist",
        ),
    ],
)
def test_a_problem_of_a_source_is_reported(entry: Any, expected: str, tmp_path: Path) -> None:
    assert expected in " ".join(checked("--sources", sources(tmp_path, crm=entry), code=1)["problems"])


def test_an_empty_folder_of_templates_is_reported(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    images = {"kind": "comfyui", "url": "http://gpu-1:8188", "templates": [str(tmp_path / "none")]}
    (problem,) = checked("--sources", sources(tmp_path, images=images), code=1)["problems"]
    assert problem.startswith("sources.images.templates: there is no sidecar in ")


@pytest.mark.promise("workflow.init")
def test_a_check_that_finds_nothing_names_where_it_looked_and_fails(tmp_path: Path) -> None:
    assert checked("--sources", str(tmp_path / "none.yaml"), code=1)["problems"]
    place = tmp_path / "sources.yaml"
    (problem,) = checked("--data-dir", str(tmp_path), code=1)["problems"]
    assert problem.startswith(f"{place} does not exist. ")
    sources(tmp_path, docs={"kind": "mcp", "command": "docs-server"})
    (problem,) = checked("--data-dir", str(tmp_path), code=1)["problems"]
    assert problem.startswith(f"{place} has no enabled n8n or ComfyUI source")
    (tmp_path / "none").mkdir()
    (problem,) = checked(str(tmp_path / "none"), code=1)["problems"]
    assert problem.startswith(f"there is no sidecar in {tmp_path / 'none'}")


def test_a_note_names_the_command_for_tools_that_only_a_hub_knows(tmp_path: Path) -> None:
    found = checked("--sources", sources(tmp_path, crm={**CRM, "workflows": {}, "discover": {}}))
    assert found["tools"] == []
    assert found["notes"][0].endswith("`toolhub tools list --source crm`")


def test_in_a_terminal_people_read_it_and_nothing_drives_the_terminal(tmp_path: Path) -> None:
    words = sidecar(description="Scale \x1b[2J it.\nMore.", forced=[])
    path = write(tmp_path, words)
    (tmp_path / "bad.json").write_text(json.dumps({**SIDECAR, "tool": "bad", "bindngs": []}))
    code = "from toolhub_service.cli.sources.workflows import workflows; workflows()"
    shown = in_terminal([sys.executable, "-c", code, "check", str(path.parent)], environment(tmp_path))
    assert shown.code == 1
    text = " ".join(shown.text.split())
    for expected in (
        "! scale_image",
        "takes width",
        "1 to 4 files",
        "answers with old files",
        "did you mean `bindings`?",
    ):
        assert expected in text
    assert "1 tool, 1 of them wrong" in text
    assert "\x1b[2J" not in shown.text


def test_init_writes_a_sidecar_that_passes(tmp_path: Path) -> None:
    graph = tmp_path / "My graph.json"
    graph.write_text(json.dumps(GRAPH))
    result = cli("init", str(graph), "--object-info", nodes(tmp_path))
    path = tmp_path / "My_graph.yaml"
    assert f"Wrote {path}." in result.output
    (tool,) = checked(str(path), "--object-info", nodes(tmp_path))["tools"]
    assert tool["problems"] == []
    assert tool["warnings"] == ["description: it is missing; models choose tools by it"]
    assert tool["arguments"]["image"] == "artifact id, required"


@pytest.mark.promise("workflow.init")
def test_init_of_a_graph_that_saves_twice_passes_the_check(tmp_path: Path) -> None:
    graph = tmp_path / "g.json"
    second = {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "hub/second"}}
    graph.write_text(json.dumps({**GRAPH, "9": second}))
    cli("init", str(graph), "--object-info", nodes(tmp_path))
    (tool,) = checked(str(tmp_path / "g.yaml"))["tools"]
    assert tool["problems"] == []
    assert set(tool["results"]) == {"images_3", "images_9"}


@pytest.mark.parametrize(
    ("node_class", "inputs", "outputs"),
    [
        ("SaveText", {"text": ["1", 0], "filename_prefix": "a", "format": "txt"}, [("text", "text")]),
        ("SaveLatent", {"samples": ["1", 0], "filename_prefix": "a"}, [("latents", "output")]),
        ("ImageCompare", {"image_a": ["1", 0], "image_b": ["1", 0]}, [("a_images", "temp"), ("b_images", "temp")]),
        ("ImageCompare", {"image_a": ["1", 0]}, [("a_images", "temp")]),
        ("SaveAudioMP3", {"audio": ["1", 0], "filename_prefix": "a"}, [("audio", "output")]),
        ("PreviewAny", {"source": ["1", 0]}, [("text", "text")]),
    ],
)
def test_init_names_the_keys_under_which_nodes_put_out(
    node_class: str, inputs: Any, outputs: Any, tmp_path: Path
) -> None:
    graph = tmp_path / "g.json"
    graph.write_text(json.dumps({"1": GRAPH["1"], "2": {"class_type": node_class, "inputs": inputs}}))
    cli("init", str(graph))
    words = yaml.safe_load((tmp_path / "g.yaml").read_text())
    assert [(output["key"], output["type"]) for output in words["outputs"]] == outputs
    assert checked(str(tmp_path / "g.yaml"))["tools"][0]["problems"] == []


def test_init_overwrites_nothing_by_default(tmp_path: Path) -> None:
    graph = tmp_path / "g.json"
    graph.write_text(json.dumps(GRAPH))
    (tmp_path / "draw.yaml").write_text("mine")
    assert "exists already" in cli("init", str(graph), "--name", "draw", code=1).output
    assert (tmp_path / "draw.yaml").read_text() == "mine"
    cli("init", str(graph), "--name", "draw", "--force")
    assert yaml.safe_load((tmp_path / "draw.yaml").read_text())["tool"] == "draw"


def test_init_finds_the_graph_from_another_folder(tmp_path: Path) -> None:
    graph = tmp_path / "g.json"
    graph.write_text(json.dumps(GRAPH))
    out = tmp_path / "tools" / "draw.yaml"
    cli("init", str(graph), "--name", "images.draw", "--out", str(out))
    assert yaml.safe_load(out.read_text())["workflow"] == {"file": "../g.json"}
    assert checked(str(out))["tools"][0]["name"] == "images.draw"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"nodes": [], "links": []}, "Export (API)"),
        ({"1": {"class_type": "EmptyImage", "inputs": {}}}, "none of its nodes saves or previews"),
    ],
)
def test_init_states_why_a_file_is_no_graph_for_a_tool(value: Any, expected: str, tmp_path: Path) -> None:
    graph = tmp_path / "g.json"
    graph.write_text(json.dumps(value))
    assert expected in cli("init", str(graph), code=1).output
    assert not (tmp_path / "g.yaml").exists()


def test_init_refuses_a_name_that_no_tool_can_have(tmp_path: Path) -> None:
    assert "--name" in cli("init", str(tmp_path / "g.json"), "--name", "a b", code=2).output


def test_a_command_that_is_not_there_is_answered_with_the_nearest() -> None:
    assert "Did you mean `check`?" in cli("chek", code=2).output


def test_templates_that_sources_yaml_names_count_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc" / "templates").mkdir(parents=True)
    path = write(tmp_path / "etc" / "templates")
    named = {"kind": "comfyui", "url": "http://gpu:8188", "templates": ["templates", "none.yaml"]}
    file = sources(tmp_path / "etc", images=named)
    monkeypatch.chdir(tmp_path)
    found = checked("--sources", file, code=1)
    assert [tool["place"] for tool in found["tools"]] == [str(path)]
    assert found["problems"] == [f"sources.images.templates: {tmp_path / 'etc' / 'none.yaml'}: the file does not exist"]
