"""Template injection: a template is text with names in it, and no expression of another engine runs."""

from __future__ import annotations

import html
import re

import pytest

from tests.corpora import load_json, load_text
from tests.fakes.outcomes import outcome
from toolhub_service.domain.errors.failure import ErrorKind, ToolError
from toolhub_service.tools.mustache import RenderLimits, render

LIMITS = RenderLimits()


def injections() -> list[str]:
    found: list[str] = load_json("template/patt_ssti_python.json.gz")
    assert len(found) > 100
    return found


def test_an_injection_as_a_template_renders_its_text_and_nothing_else() -> None:
    for template in injections():
        text = outcome(render, template, {"config": "c"}, {}, LIMITS)
        if isinstance(text, ToolError):
            assert text.kind is ErrorKind.INVALID_INPUT
            assert "line" in text.details
            continue
        for computed in ("49", "7777777", "<class", "uid=", "root:"):
            assert computed in template or computed not in text
        # Nothing is in the text that was not in the template, but for the one value that it was given.
        assert set(html.unescape(text)) <= {*template, "c"}


def test_an_injection_as_data_comes_out_as_it_went_in() -> None:
    for value in injections():
        assert render("{{{x}}}", {"x": value}, {}, LIMITS) == value
        assert render("{{#x}}{{{.}}}{{/x}}", {"x": [value]}, {}, LIMITS) == value


def test_an_injection_as_the_name_of_a_partial_reads_no_file() -> None:
    for name in [*injections(), "/etc/passwd", "../../../etc/hostname", "file:///etc/passwd"]:
        if "}}" in name or not name.strip():
            continue
        assert "root:" not in render("{{> " + name + "}}", {}, {}, LIMITS)


def test_delimiters_of_other_engines_are_text() -> None:
    for template in ("${7*7}", "<%= 7*7 %>", "#{7*7}", "{% for x in y %}", "{7*7}", "$(id)", "*{7*7}", "[[7*7]]"):
        assert render(template, {}, {}, LIMITS) == template


@pytest.mark.promise("bounds.templates-and-queries")
@pytest.mark.parametrize(
    "name", ["__class__", "__class__.__mro__", "x.__class__", "x.upper", "items", "x.0", "keys", "__globals__"]
)
def test_a_name_is_used_as_a_key_only(name: str) -> None:
    assert render("({{{" + name + "}}})({{#" + name + "}}in{{/" + name + "}})", {"x": "text"}, {}, LIMITS) == "()()"


def test_strings_that_stall_backtracking_engines_are_rendered_at_once() -> None:
    evil = re.findall(r"`([^`\n]+)`", load_text("template/patt_redos.md.gz"))
    for pattern in [*evil, "(a+)+$"]:
        for text in (
            "{{" * 20_000 + pattern,
            "{{ " + "a" * 100_000 + "!",
            pattern * 5000,
            "\n \t" * 30_000 + "{{" + pattern,
        ):
            found = outcome(render, text, {}, {}, LIMITS)
            assert isinstance(found, str) or found.kind is ErrorKind.INVALID_INPUT
