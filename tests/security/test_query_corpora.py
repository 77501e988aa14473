"""Strings that stall or crash parsers and pattern engines, as queries and as patterns of command rules.

An engine that backtracks needs longer for them than the timeout of any test.
"""

from __future__ import annotations

import re

import pytest

from tests.corpora import load_json, load_lines, load_text
from tests.fakes.outcomes import outcome
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.verdict import CommandRule
from toolhub_service.guards.commands.check import check_command
from toolhub_service.tools.query import select
from toolhub_service.tools.query_limits import Language, QueryLimits

LIMITS = QueryLimits()
LANGUAGES: list[Language] = ["jmespath", "jsonpath"]


def evil_patterns() -> list[str]:
    found = re.findall(r"`([^`\n]+)`", load_text("template/patt_redos.md.gz"))
    patterns = [pattern.strip("/") for pattern in found if "(" in pattern and "=" not in pattern]
    assert "(a+)+" in patterns
    return [*patterns, "(a+)+$", "(.*a){20}", "(a|a)*b", "((a*)*)*c", "([a-z]+)*[0-9]"]


def test_patterns_that_backtrack_forever_elsewhere_are_settled_at_once() -> None:
    text = "a" * 50_000 + "!"
    for pattern in evil_patterns():
        quoted = pattern.replace("\\", "\\\\").replace("'", "\\'")
        assert select([text], f"$[?match(@, '{quoted}')]", "jsonpath", LIMITS) in ([], [text])
        select([text], f"$[?search(@, '{quoted}')]", "jsonpath", LIMITS)
        rule = CommandRule(name="x", path="/bin/x", positionals=pattern, end_of_options=False)
        with pytest.raises(ToolFailure):
            check_command(["x", "a" * 4000 + "!"], (rule,))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_hostile_strings_as_a_path_are_answered_or_refused(language: Language) -> None:
    strings = load_json("strings/blns.json.gz") + load_json("template/patt_ssti_python.json.gz")
    strings += load_lines("shell/patt_command_exec.txt.gz")
    for path in strings:
        found = outcome(select, {"a": [1]}, path, language, LIMITS)
        assert not isinstance(found, ToolError) or found.kind is ErrorKind.INVALID_INPUT


@pytest.mark.parametrize("language", LANGUAGES)
def test_hostile_strings_as_data_are_found_as_they_are(language: Language) -> None:
    for text in load_json("strings/blns.json.gz"):
        path = "[?@ != 'x']" if language == "jmespath" else "$[?@ != 'x']"
        assert select([text], path, language, LIMITS) == ([text] if text != "x" else [])


@pytest.mark.parametrize(
    "piece",
    ["[", "(", "{", "[?", "$[", "..", ".*", "*", "!", "&&", "||", "'", '"', "`", "\\", "a|", "[@,", "a.b", "{a:"],
)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_repetition_up_to_the_limit_neither_crashes_nor_stalls(piece: str, language: Language) -> None:
    for prefix in ("", "$", "$[?", "a"):
        path = (prefix + piece * 2048)[: LIMITS.expression_chars]
        found = outcome(select, {"a": {"b": [[1]]}}, path, language, LIMITS)
        assert not isinstance(found, ToolError) or found.kind is ErrorKind.INVALID_INPUT
