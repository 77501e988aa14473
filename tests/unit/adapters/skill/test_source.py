"""The source of skills keeps what every source of tools must do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ports.tool_source_suite import ToolSourceSuite
from tests.unit.adapters.skill.skill_folders import write_skill
from toolhub_service.adapters.skill.checkout import Checkouts
from toolhub_service.adapters.skill.kind import SkillEntry, SkillSource
from toolhub_service.adapters.skill.source import SkillToolSource


class TestSource(ToolSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> SkillToolSource:
        write_skill(tmp_path / "skills", "notes", files={"more.md": "More."})
        write_skill(tmp_path / "skills", "pdf-forms")
        entry = SkillSource(skills=(SkillEntry(path=str(tmp_path / "skills")),))
        return SkillToolSource("skill", entry, Checkouts(tmp_path / "none", str), redact=str)
