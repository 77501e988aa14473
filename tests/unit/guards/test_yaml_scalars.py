"""What somebody writes without quotes is what the hub reads, or the hub says that quotes are needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from toolhub_service.adapters.mcp.kind import McpSource
from toolhub_service.app.config_files.key_file import KeyFile, KeyFileInvalid
from toolhub_service.app.config_files.sources_editing import with_sources
from toolhub_service.app.config_files.sources_file import parse_sources
from toolhub_service.guards.yaml_scalars import load_as_written
from toolhub_service.policy.parsing import InvalidPolicy, parse_policy
from toolhub_service.settings.loading import SettingsInvalid, load_settings


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_a_protocol_version_needs_no_quotes(version: str) -> None:
    source = parse_sources(f"sources: {{far: {{url: 'https://a.example', protocol: {version}}}}}", "x").sources["far"]
    assert isinstance(source, McpSource)
    assert source.protocol == version


@pytest.mark.parametrize(
    "text", ["2025-11-25", "2025-13-45", "12:30", "190:20:30", "1:30.5", "2001-12-14t21:59:43.10-05:00", "="]
)
def test_dates_and_times_stay_as_they_were_written(text: str) -> None:
    assert load_as_written(f"a: {text}") == {"a": text}
    source = parse_sources(f"sources: {{far: {{command: x, env: {{A: {text}}}}}}}", "x").sources["far"]
    assert isinstance(source, McpSource)
    assert source.env == {"A": text}


@pytest.mark.parametrize("text", ["0755", "0x1f", "1_000", "1.5", "yes", "off", "null", "~", ".inf", "[1]", "a: b"])
def test_everything_else_is_read_as_before(text: str) -> None:
    assert load_as_written(f"a:\n  {text}") == yaml.safe_load(f"a:\n  {text}")


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("0755", "a number"),
        ("2.10", "a number"),
        ("0x1f", "a number"),
        ("no", "true or false (so it does yes, no, on and off)"),
    ],
)
def test_a_value_that_yaml_takes_for_something_else_gets_the_advice_to_quote_it(written: str, read_as: str) -> None:
    advice = f"put the value in quotes, YAML reads it as {read_as}"
    with pytest.raises(SettingsInvalid, match=r"sources\.far\.cwd: Expected `str`") as refused:
        parse_sources(f"sources: {{far: {{command: x, cwd: {written}}}}}", "x")
    assert advice in str(refused.value)
    with pytest.raises(InvalidPolicy) as invalid:
        parse_policy(f"rules: [{{id: {written}, effect: DENY}}]")
    assert advice in str(invalid.value)


def test_a_date_among_the_settings_is_text(tmp_path: Path) -> None:
    file = tmp_path / "toolhub.yaml"
    file.write_text("data_dir: 2025-11-25")
    assert load_settings(file, {}).data_dir == "2025-11-25"


def test_a_source_is_added_beside_one_with_a_date() -> None:
    text = with_sources(
        "sources:\n  far:\n    url: https://a.example\n    protocol: 2025-11-25\n", {"b": {"command": "x"}}
    )
    assert [*parse_sources(text, "x").sources] == ["far", "b"]


def test_an_impossible_date_in_the_file_of_keys_is_an_error_of_that_file(tmp_path: Path) -> None:
    file = tmp_path / "api-keys.yaml"
    file.write_text("a: {name: ann, sha256: x, expires: 2025-13-45}")
    with pytest.raises(KeyFileInvalid, match="not a file of API keys"):
        KeyFile(file).read()
