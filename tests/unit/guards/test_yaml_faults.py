"""The report of a broken YAML file, which may hold a password on the very line that is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolhub_service.app.config_files.sources_file import parse_sources
from toolhub_service.settings.loading import SettingsInvalid, load_settings

SECRET = "hunter2canary"


@pytest.mark.parametrize(
    "line",
    [
        f'A: "{SECRET}" B: 1',
        f"A: {SECRET}: x",
        f"A: [{SECRET}",
        f"A: *{SECRET}",
        f"A: !{SECRET} x",
        f"A: '{SECRET}",
        f"A: {SECRET}\n\tB: 1",
        f"A: {SECRET}\n  \x01",
        f"? {SECRET}\n? [{SECRET}]",
    ],
)
def test_a_broken_file_is_reported_by_its_place_and_none_of_its_text(tmp_path: Path, line: str) -> None:
    text = f"sources:\n  {line}\n"
    with pytest.raises(SettingsInvalid) as sources:
        parse_sources(text, "sources.yaml")
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(SettingsInvalid) as settings:
        load_settings(tmp_path / "c.yaml", environment={})
    for refused in (sources.value, settings.value):
        assert SECRET not in str(refused)
        assert refused.__cause__ is None
        assert "\n" not in str(refused)
