from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.adapters.skill.skill_folders import write_skill
from toolhub_service.adapters.skill.skill import load_skill, skill_folders
from toolhub_service.adapters.skill.skill_file import SkillInvalid, read_skill_file

WHOLE = """---
name: pdf-forms
description: >
  Fill PDF forms.
  Use when a form is to be filled.
license: Apache-2.0
compatibility: Requires Python 3.11
metadata:
  author: acme
  version: "1.0"
  revision: 010
allowed-tools: Read Bash(git add:*) Bash(jq:*)
---

# Forms

---
Not a second frontmatter.
"""


def test_frontmatter_and_body_are_read_as_the_specification_demands() -> None:
    file = read_skill_file(WHOLE.replace("\n", "\r\n").encode("utf-8-sig"), "pdf-forms")
    assert (file.name, file.license, file.compatibility) == ("pdf-forms", "Apache-2.0", "Requires Python 3.11")
    assert file.description == "Fill PDF forms. Use when a form is to be filled."
    assert file.metadata == {"author": "acme", "version": "1.0", "revision": "010"}
    assert file.allowed_tools == ("Read", "Bash(git add:*)", "Bash(jq:*)")
    assert file.body == "# Forms\n\n---\nNot a second frontmatter."
    assert file.warnings == ()


LENIENT = {
    "another folder": ("name: other\ndescription: d", "not the name of its folder"),
    "no name": ("description: d", "that of its folder is used"),
    "capitals": ("name: Skill\ndescription: d", "lower-case letters"),
    "double hyphen": ("name: s--x\ndescription: d", "single hyphens"),
    "long name": (f"name: {'a' * 65}\ndescription: d", "has 65 characters"),
    "long description": (f"name: skill\ndescription: {'d ' * 600}", "has 1,199 characters"),
    "long compatibility": (f"name: skill\ndescription: d\ncompatibility: {'c' * 501}", "has 501 characters"),
    "unknown key": ("name: skill\ndescription: d\nversion: 1", "knows no `version`"),
    "colon": ("name: skill\ndescription: Use when: a form is there", "must be in quotes"),
    "metadata list": ("name: skill\ndescription: d\nmetadata: [a]", "`metadata` is no mapping"),
    "nested metadata": ("name: skill\ndescription: d\nmetadata: {a: {b: c}, d: e}", "no text"),
    "tools as list": ("name: skill\ndescription: d\nallowed-tools: [Read, Grep]", "is a list"),
    "tools with commas": ("name: skill\ndescription: d\nallowed-tools: Read, Grep", "commas"),
    "tools as mapping": ("name: skill\ndescription: d\nallowed-tools: {a: b}", "no text and was left out"),
}


def test_a_broken_rule_of_the_format_is_a_warning_and_the_skill_is_used() -> None:
    for case, (frontmatter, warning) in LENIENT.items():
        file = read_skill_file(f"---\n{frontmatter}\n---\nDo it.\n".encode(), "skill")
        assert any(warning in note for note in file.warnings), (case, file.warnings)
        assert len(file.warnings) <= 2, (case, file.warnings)
        assert file.name, case
    colon = read_skill_file(b'---\nname: s\ndescription: Say "x": then y\n---\nDo.', "s")
    assert colon.description == 'Say "x": then y'
    long = read_skill_file(b"---\nname: s\ndescription: d\n---\n" + b"x\n" * 600, "s")
    assert long.warnings[0].startswith("Its instructions have 600 lines")
    assert read_skill_file(b"---\nname: s\ndescription: d\n---\n", "s").warnings[0].startswith("It has no instructions")


HOSTILE = {
    "no frontmatter": (b"# Title\n", "does not begin with frontmatter"),
    "never ends": (b"---\nname: s\ndescription: d\n", "does not end"),
    "no description": (b"---\nname: s\n---\nbody", "no `description`"),
    "blank description": (b"---\nname: s\ndescription: '  '\n---\nbody", "no `description`"),
    "description of another kind": (b"---\nname: s\ndescription: [a]\n---\nbody", "no `description`"),
    "a list": (b"---\n- a\n---\nbody", "has no keys"),
    "not YAML": (b"---\nname: [\n---\nbody", "is not YAML"),
    "bomb": (b"---\na: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n---\n", "anchors and aliases"),
    "alias to itself": (b"---\na: &a [*a]\n---\n", "anchors and aliases"),
    "tag": (b"---\nname: !!python/object/apply:os.system [id]\n---\n", "tags are not supported"),
    "key twice": (b"---\nname: a\nname: b\ndescription: d\n---\n", "twice"),
    "key of another kind": (b"---\n? [a]\n: b\n---\n", "a key must be text"),
    "deep": (b"---\na: " + b"[" * 8_000 + b"\n---\n", "nested too deeply"),
    "long": (b"---\na: " + b"x" * 20_000 + b"\n---\n", "more than 16,384 bytes"),
    "huge": (b"x" * (1024 * 1024 + 1), "more than 1,048,576 bytes"),
    "NUL": (b"---\nname: a\0b\ndescription: d\n---\n", "is not YAML"),
    "not UTF-8": (b"---\nname: \xff\n---\n", "not UTF-8"),
}


def test_a_file_that_is_no_skill_is_refused_with_what_to_correct() -> None:
    for case, (data, message) in HOSTILE.items():
        with pytest.raises(SkillInvalid) as refused:
            read_skill_file(data, "s")
        assert message in str(refused.value), (case, str(refused.value))


def test_a_skill_is_loaded_with_its_files_and_its_sidecar(tmp_path: Path) -> None:
    plain = load_skill(write_skill(tmp_path, "plain", files={"references/more.md": "More."}))
    assert (plain.name, plain.sidecar, plain.warnings) == ("plain", None, ())
    assert [file.path for file in plain.files] == ["SKILL.md", "references/more.md"]

    by_rule = load_skill(write_skill(tmp_path, "by-rule", files={"toolhub.json": "{}"}))
    assert (by_rule.sidecar, by_rule.sidecar_path) == (b"{}", "toolhub.json")
    text = "---\nname: named\ndescription: d\nmetadata:\n  toolhub.manifest: meta/hub.json\n---\nDo."
    named = load_skill(write_skill(tmp_path, "named", text=text, files={"meta/hub.json": "[]", "toolhub.json": "{}"}))
    assert (named.sidecar, named.sidecar_path) == (b"[]", "meta/hub.json")

    folder = write_skill(tmp_path, "odd", text="---\nname: ../A b\u202e\ndescription: d\n---\nDo.")
    (folder / "SKILL.md").rename(folder / "skill.md")
    odd = load_skill(folder)
    assert odd.name == "___A_b_"
    assert [
        warning for warning in odd.warnings if "The hub calls it `___A_b_`" in warning or "named `skill.md`" in warning
    ] == [*odd.warnings[-2:]]


def test_a_folder_without_a_usable_skill_is_refused_with_a_reason(tmp_path: Path) -> None:
    gone = "---\nname: s\ndescription: d\nmetadata: {toolhub.manifest: ../x.json}\n---\nDo."
    large = {"toolhub.json": b" " * (512 * 1024 + 1)}
    for case, folder, message in (
        ("no folder", tmp_path / "none", "cannot be read"),
        ("sidecar outside", write_skill(tmp_path, "s", text=gone), "that its metadata names is not there"),
        ("large sidecar", write_skill(tmp_path, "l", files=large), "more than 524,288 bytes"),
        ("unspeakable", write_skill(tmp_path, "u", text="---\nname: '-- --'\ndescription: d\n---\nDo."), "no letter"),
    ):
        with pytest.raises(SkillInvalid) as refused:
            load_skill(folder)
        assert message in str(refused.value), case
        assert str(tmp_path) not in str(refused.value)


def test_skills_are_found_below_a_folder_and_not_within_one_another(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills", "b")
    write_skill(tmp_path / "skills", "a")
    write_skill(tmp_path / "skills" / "a" / "assets", "inner")
    write_skill(tmp_path / ".hidden", "h")
    write_skill(tmp_path / "one" / "two" / "three" / "four", "deep")
    (tmp_path / "link").symlink_to(tmp_path / "skills")
    assert [folder.name for folder in skill_folders(tmp_path)] == ["a", "b"]
    assert [folder.name for folder in skill_folders(tmp_path / "skills" / "a")] == ["a"]
