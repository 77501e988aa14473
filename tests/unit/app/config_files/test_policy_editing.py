"""A grant is added to policy.yaml as text: everything that stands there is kept, or nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolhub_service.app.config_files.policy_editing import NotEditable, lacking_grants, with_grant
from toolhub_service.cli.policy.starter import starter_policy
from toolhub_service.cli.root import toolhub
from toolhub_service.policy.parsing import InvalidPolicy, parse_policy

ENTRY = '{principals: ["ann"], capabilities: ["mcp:time"]}'
LAYOUTS = {
    "empty": "",
    "comments only": "# nobody yet\n",
    "the starter policy": starter_policy(),
    "no grants": "extends: none\nroles: [{principals: [ops], roles: [operator]}]\n",
    "no line end": "extends: none",
    "an empty list": "grants: []  # none\nextends: none\n",
    "one line": "grants: [{principals: [bob], capabilities: [read:fs]}]\nextends: none\n",
    "one line with a comma at its end": "grants: [{principals: [bob]},]\n",
    "a list over lines": "grants: [\n  {principals: [bob]},  # him\n  {principals: [eve]}\n]\n",
    "blocks": "grants:\n  - principals: [bob]\n    capabilities: [read:fs]  # reads\n\n  # last\nrules: []\n",
    "blocks without an indent": "grants:\n- principals:\n  - bob\n  capabilities:\n  - read:fs\n# end\nlimits: []\n",
    "blocks at the end of the file": "extends: none\ngrants:\n  - {principals: [bob]}",
    "a list over two lines": "grants:\n- principals: [bob]\n  capabilities: [read:fs,\n    write:fs]\nrules: []\n",
}


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
def test_a_grant_is_added_and_every_line_and_comment_is_kept(text: str) -> None:
    edited = with_grant(text, "ann", ["mcp:time"])
    before, after = parse_policy(text)[0], parse_policy(edited)[0]
    assert after.grants[:-1] == before.grants
    assert (after.grants[-1].principals, after.grants[-1].capabilities) == (("ann",), ("mcp:time",))
    assert edited.replace(ENTRY, "").replace(" ", "").replace("\n", "").replace("grants:", "") in {
        # A list in blocks gets a dash, one in a line a comma where there was none.
        variant.replace(" ", "").replace("\n", "").replace("grants:", "")
        for variant in (
            text,
            f"{text}-",
            *(f"{text[:at]}{mark}{text[at:]}" for at in range(len(text)) for mark in ",-"),
        )
    }
    assert with_grant(edited, "ann", ["x:y"]).count("principals") == edited.count("principals") + 1


def test_what_the_principal_has_is_not_granted_again() -> None:
    text = "grants: [{principals: [ann, bob], capabilities: [read:fs]}, {principals: ['*'], capabilities: [a:b]}]"
    assert lacking_grants(text, "ann", ["read:fs", "mcp:time"]) == ["mcp:time"]
    assert lacking_grants(text, "ann", ["a:b"]) == ["a:b"]


def test_an_invalid_file_or_entry_changes_nothing() -> None:
    with pytest.raises(InvalidPolicy, match="danger:destructive: name it"):
        with_grant("", "ann", ["danger:*"])
    with pytest.raises(InvalidPolicy):
        with_grant("grants: 7", "ann", ["mcp:time"])


def test_a_layout_that_cannot_be_edited_is_told_with_the_lines_to_add() -> None:
    with pytest.raises(NotEditable, match="Add by hand"):
        with_grant("{extends: none}", "ann", ["mcp:time"])


def invoke(folder: Path, *words: str) -> Result:
    runner = CliRunner(env={"TOOLHUB_DATA_DIR": str(folder / "hub"), "COLUMNS": "200"})
    return runner.invoke(toolhub, ["policy", "grant", *words])


def test_the_command_writes_a_policy_where_there_is_none_and_adds_to_it(tmp_path: Path) -> None:
    file = tmp_path / "hub" / "policy.yaml"
    shown = invoke(tmp_path, "local", "read:web", "--dry-run")
    assert shown.stdout == '+ grants:\n+   - {principals: ["local"], capabilities: ["read:web"]}\n'
    assert not file.exists()
    first = invoke(tmp_path, "local", "read:web")
    assert first.exit_code == 0, first.output
    assert file.read_text().startswith(starter_policy().rstrip())
    assert file.stat().st_mode & 0o077 == 0
    second = invoke(tmp_path, "local", "core/fs.deletePath", "read:web")
    assert (
        second.stdout.splitlines()[0]
        == '+   - {principals: ["local"], capabilities: ["danger:destructive", "write:fs"]}'
    )
    again = invoke(tmp_path, "local", "core/fs.deletePath")
    assert (again.exit_code, again.stdout.startswith("Nothing to do: ")) == (0, True)


def test_names_that_mean_nothing_are_told(tmp_path: Path) -> None:
    refused = invoke(tmp_path, "local", "core/fs.delete")
    assert (refused.exit_code, "Did you mean core/fs.deletePath?" in refused.output) == (2, True)
    refused = invoke(tmp_path, "local", "time/now")
    assert (refused.exit_code, "`toolhub tools show TOOL` says which" in refused.output) == (2, True)
    refused = invoke(tmp_path, "local", "core/util.time.now")
    assert (refused.exit_code, "needs no capability" in refused.output) == (2, True)
    assert "matches no known capability" in invoke(tmp_path, "local", "reed:fs").output
