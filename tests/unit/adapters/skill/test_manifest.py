"""A skill's toolhub.json: what is accepted, and how each refusal is worded."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from toolhub_service.adapters.skill.manifest import ManifestInvalid, manifest_schema, read_manifest
from toolhub_service.domain.json import JsonValue

OBJECT = {"type": "object"}
SCRIPT: dict[str, Any] = {
    "mode": "script",
    "input_schema": OBJECT,
    "output_schema": OBJECT,
    "entry": {"argv": ["{python}", "scripts/run.py", "--fast"], "env": {"LANG": "C.UTF-8"}},
    "artifacts": [{"name": "*.csv", "media_type": "text/csv", "required": True}, {"name": "log/*"}],
}
PLAN: dict[str, Any] = {
    "mode": "plan",
    "input_schema": OBJECT,
    "output_schema": OBJECT,
    "plan": {"steps": [{"id": "read", "tool": "core/fs.readText", "if": {"value": "/input/x"}}], "output": {}},
}
PROGRAM: dict[str, Any] = {
    "mode": "program",
    "input_schema": OBJECT,
    "output_schema": OBJECT,
    "program": {"file": "program.py"},
}


def entry(**changed: Any) -> dict[str, Any]:
    return {**SCRIPT, "entry": {**SCRIPT["entry"], **changed}}


def problems(document: JsonValue) -> str:
    with pytest.raises(ManifestInvalid) as refused:
        read_manifest(json.dumps(document).encode())
    return "\n".join(refused.value.problems)


def test_a_sidecar_of_each_mode_is_read_and_fits_the_published_schema() -> None:
    validator = jsonschema_rs.validator_for(json.dumps(manifest_schema()))
    for document in (SCRIPT, PLAN, PROGRAM, {**SCRIPT, "$schema": "./toolhub.schema.json", "tools": ["core/fs.*"]}):
        manifest = read_manifest(json.dumps(document).encode())
        assert manifest.mode == document["mode"]
        assert validator.is_valid(document), document
    assert [each.name for each in read_manifest(json.dumps(SCRIPT).encode()).required_artifacts] == ["*.csv"]
    assert not validator.is_valid({**SCRIPT, "approved": True})


def test_a_problem_is_reported_with_its_place_and_the_expected_value() -> None:
    cases: dict[str, tuple[JsonValue, str]] = {
        "no object": ([], "must be an object"),
        "a finished skill": (
            {**SCRIPT, "approved": True, "evidence": []},
            "unknown key `approved`\nunknown key `evidence`",
        ),
        "a near key": (
            {**SCRIPT, "limits": {"timeouts": 3}},
            "limits: unknown key `timeouts`; did you mean `timeout_s`?",
        ),
        "a bound": ({**SCRIPT, "limits": {"processes": 100_000}}, "limits.processes: Expected `int` <= 512"),
        "two modes": ({**SCRIPT, "plan": PLAN["plan"]}, "plan: belongs to mode `plan`, and `mode` is `script`"),
        "no section": ({**PLAN, "plan": None}, "plan: missing; mode `plan` needs it"),
        "a schema of text": ({**SCRIPT, "input_schema": {"type": "string"}}, 'input_schema.type: must be "object"'),
        "a schema elsewhere": ({**SCRIPT, "output_schema": {**OBJECT, "$ref": "http://x/y"}}, "output_schema: "),
        "a program of the machine": (entry(argv=["/bin/rm", "-rf"]), "entry.argv[0]: `/bin/rm` must be `{python}`"),
        "a way out": (entry(argv=["../../run"]), "without `..`"),
        "a second program": (entry(argv=["{sh}", "{python}"]), "entry.argv[1]: a program is named by the first word"),
        "no words": (entry(argv=[]), "entry.argv: Expected `array` of length >= 1"),
        "the loader": (entry(env={"LD_PRELOAD": "x.so"}), "entry.env.LD_PRELOAD: is the hub's to set"),
        "its path": (entry(env={"path": "/x"}), "entry.env.path: is the hub's to set"),
        "a secret": (entry(env={"API_KEY": "x"}), "entry.env.API_KEY: looks like a secret"),
        "a name of no variable": (entry(env={"A=B": "x"}), "entry.env"),
        "a file elsewhere": ({**SCRIPT, "artifacts": [{"name": "../*"}]}, "artifacts[0].name"),
        "artifacts of a plan": ({**PLAN, "artifacts": [{"name": "x"}]}, "only mode `script` leaves files"),
        "harmless and not": (
            {**SCRIPT, "annotations": {"read_only": True, "destructive": True}},
            "annotations.read_only",
        ),
        "a program elsewhere": ({**PROGRAM, "program": {"file": "/etc/passwd"}}, "program.file"),
        "a tool of no form": ({**SCRIPT, "tools": ["a b"]}, "tools[0]: Expected `str` matching regex"),
        "a step's name": (
            {**PLAN, "plan": {"steps": [{"id": "A b", "tool": "core/x"}], "output": {}}},
            "plan.steps[0].id: Expected `str` matching regex",
        ),
    }
    wrong_by_name = {name: problems(document) for name, (document, _) in cases.items()}
    wrong = {name: wrong_by_name[name] for name, (_, expected) in cases.items() if expected not in wrong_by_name[name]}
    assert not wrong


def test_text_that_is_no_strict_json_is_refused_without_being_shown() -> None:
    for data in (b"{", b'{"mode": "script", "mode": "plan"}', b"[" * 5_000, b'{"a": NaN}', b"\xff", b" " * 600_000):
        with pytest.raises(ManifestInvalid, match="not strict JSON"):
            read_manifest(data)
