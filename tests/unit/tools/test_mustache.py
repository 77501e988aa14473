"""The behaviours that the Mustache specification (1.x) asks for, in our words, and the bounds it does not know."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.outcomes import outcome
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.tools.mustache import RenderLimits, render

LIMITS = RenderLimits()


def rendered(template: str, data: Any = None, partials: dict[str, str] | None = None) -> str:
    return render(template, data if data is not None else {}, partials or {}, LIMITS)


def refusal(
    template: str, data: Any = None, partials: dict[str, str] | None = None, limits: RenderLimits = LIMITS
) -> ToolError:
    with pytest.raises(ToolFailure) as caught:
        render(template, data if data is not None else {}, partials or {}, limits)
    assert caught.value.error.kind is ErrorKind.INVALID_INPUT
    return caught.value.error


INTERPOLATION = [
    ("plain text stays", "Hello from {Mustache}!\n", {}, "Hello from {Mustache}!\n"),
    ("variable", "Hello, {{subject}}!", {"subject": "world"}, "Hello, world!"),
    ("values are not rendered again", "{{a}}", {"a": "{{b}}", "b": "x"}, "{{b}}"),
    ("escaped", "{{x}}", {"x": '& " < >'}, "&amp; &quot; &lt; &gt;"),
    ("triple", "{{{x}}}", {"x": '& " < >'}, '& " < >'),
    ("ampersand", "{{&x}}", {"x": '& " < >'}, '& " < >'),
    ("integer", "{{n}} {{{n}}} {{&n}}", {"n": 85}, "85 85 85"),
    ("decimal", "{{n}}", {"n": 1.21}, "1.21"),
    ("whole float", "{{n}}", {"n": 85.0}, "85"),
    ("null", "({{x}})({{{x}}})({{&x}})", {"x": None}, "()()()"),
    ("missing", "({{x}})", {}, "()"),
    ("boolean", "{{t}} {{f}}", {"t": True, "f": False}, "true false"),
    ("object as JSON", "{{{o}}}", {"o": {"a": [1, "ä"]}}, '{"a": [1, "ä"]}'),
    ("dotted", "{{person.name}}", {"person": {"name": "Joe"}}, "Joe"),
    ("dotted deep", "{{a.b.c.d}}", {"a": {"b": {"c": {"d": 1}}}}, "1"),
    ("broken chain", "({{a.b.c}})", {"a": {}}, "()"),
    ("chain through a string", "({{a.b}})", {"a": "text"}, "()"),
    ("chain is not resolved outwards", "({{a.b.c}})", {"a": {"b": {}}, "c": {"name": "x"}}, "()"),
    (
        "first part resolves outwards, the rest does not",
        "{{#a}}({{b.c}}){{/a}}",
        {"a": {"b": {}}, "b": {"c": "E"}},
        "()",
    ),
    ("implicit iterator", "{{.}}", "world", "world"),
    ("implicit iterator escapes", "{{.}} {{{.}}} {{&.}}", "<", "&lt; < <"),
    ("padding inside the tag", "|{{ x }}|{{{ x }}}|{{& x }}|", {"x": "-"}, "|-|-|-|"),
    ("surrounding blanks stay", "  {{x}}\n", {"x": "-"}, "  -\n"),
    ("no attribute of a value", "({{s.upper}})({{s.__class__}})", {"s": "x"}, "()()"),
    ("a key with spaces is a name", "{{a b}}", {"a b": 1}, "1"),
]

SECTIONS = [
    ("true", "{{#b}}yes{{/b}}", {"b": True}, "yes"),
    ("false", "({{#b}}no{{/b}})", {"b": False}, "()"),
    ("null", "({{#b}}no{{/b}})", {"b": None}, "()"),
    ("missing", "({{#b}}no{{/b}})", {}, "()"),
    ("empty string, zero", "({{#s}}no{{/s}}{{#z}}no{{/z}})", {"s": "", "z": 0}, "()"),
    ("empty object is true", "{{#o}}yes{{/o}}", {"o": {}}, "yes"),
    ("context", "{{#c}}Hi {{name}}.{{/c}}", {"c": {"name": "Joe"}}, "Hi Joe."),
    (
        "parent context",
        "{{#sec}}{{a}}, {{b}}, {{c.d}}{{/sec}}",
        {"a": "foo", "b": "wrong", "sec": {"b": "bar"}, "c": {"d": "baz"}},
        "foo, bar, baz",
    ),
    ("variable test", "{{#foo}}{{.}} is {{foo}}{{/foo}}", {"foo": "bar"}, "bar is bar"),
    ("list", "{{#l}}{{item}}{{/l}}", {"l": [{"item": 1}, {"item": 2}, {"item": 3}]}, "123"),
    ("empty list", "({{#l}}no{{/l}})", {"l": []}, "()"),
    ("list of lists", "{{#l}}({{#.}}{{.}}{{/.}}){{/l}}", {"l": [[1, 2], ["a", "b"]]}, "(12)(ab)"),
    ("list of objects in objects", "{{#l}}{{o.x}}{{/l}}", {"l": [{"o": {"x": 1}}, {"o": {"x": 2}}]}, "12"),
    ("implicit decimals", "{{#l}}({{.}}){{/l}}", {"l": [1.1, 2.2]}, "(1.1)(2.2)"),
    ("implicit escapes", "{{#l}}{{.}}{{{.}}}{{/l}}", {"l": ["&"]}, "&amp;&"),
    ("root list", "{{#.}}({{value}}){{/.}}", [{"value": "a"}, {"value": "b"}], "(a)(b)"),
    ("doubled", "{{#b}}1{{/b}} {{two}} {{#b}}3{{/b}}", {"b": True, "two": "2"}, "1 2 3"),
    ("nested truthy", "A{{#b}} B{{#b}} C{{/b}} D{{/b}} E", {"b": True}, "A B C D E"),
    ("nested falsy", "A{{#b}} B{{#b}} C{{/b}} D{{/b}} E", {"b": False}, "A E"),
    (
        "deep nesting sees all contexts",
        "{{#a}}{{one}}{{#b}}{{one}}{{two}}{{/b}}{{/a}}",
        {"a": {"one": 1, "b": {"two": 2}}},
        "112",
    ),
    ("dotted true", "{{#a.b}}Here{{/a.b}}", {"a": {"b": True}}, "Here"),
    ("dotted broken", "({{#a.b}}no{{/a.b}})", {"a": {}}, "()"),
    ("inverted false", "{{^b}}yes{{/b}}", {"b": False}, "yes"),
    ("inverted true", "({{^b}}no{{/b}})", {"b": True}, "()"),
    ("inverted null and missing", "{{^n}}a{{/n}}{{^m}}b{{/m}}", {"n": None}, "ab"),
    ("inverted list", "({{^l}}no{{/l}})", {"l": [1]}, "()"),
    ("inverted empty list", "{{^l}}yes{{/l}}", {"l": []}, "yes"),
    ("inverted object", "({{^o}}no{{/o}})", {"o": {"a": 1}}, "()"),
    ("inverted dotted broken", "{{^a.b}}yes{{/a.b}}", {"a": {}}, "yes"),
    ("padding", "|{{# b }}={{/ b }}|", {"b": True}, "|=|"),
]

WHITESPACE = [
    ("surrounding stays", " | {{#b}}\t|\t{{/b}} | \n", {"b": True}, " | \t|\t | \n"),
    ("internal stays", " | {{#b}} {{! no }}\n {{/b}} | \n", {"b": True}, " |  \n  | \n"),
    ("indented inline", " {{#b}}YES{{/b}}\n {{#b}}GOOD{{/b}}\n", {"b": True}, " YES\n GOOD\n"),
    ("standalone lines", "| This\n{{#b}}\n| Is\n{{/b}}\n| A Line\n", {"b": True}, "| This\n| Is\n| A Line\n"),
    ("indented standalone lines", "| This\n  {{#b}}\n| Is\n  {{/b}}\n| A\n", {"b": True}, "| This\n| Is\n| A\n"),
    ("carriage returns", "|\r\n{{#b}}\r\n{{/b}}\r\n|", {"b": True}, "|\r\n|"),
    ("first line", "  {{#b}}\n#{{/b}}\n/", {"b": True}, "#\n/"),
    ("last line", "#{{#b}}\n/\n  {{/b}}", {"b": True}, "#\n/\n"),
    ("two tags on a line are not standalone", "{{#b}}{{/b}}\nx", {"b": True}, "\nx"),
    ("variables are never standalone", "  {{x}}  \n", {"x": ""}, "    \n"),
    ("inverted standalone", "|\n{{^b}}\n=\n{{/b}}\n|\n", {"b": False}, "|\n=\n|\n"),
    ("standalone comment", "Begin.\n  {{! gone }}\nEnd.\n", {}, "Begin.\nEnd.\n"),
    ("multi-line comment", "Begin.\n  {{!\n gone \n  }}\nEnd.\n", {}, "Begin.\nEnd.\n"),
    ("inline comment", "  12 {{! 34 }}\n", {}, "  12 \n"),
    ("comment without a last newline", "!\n  {{! gone }}", {}, "!\n"),
    ("comments may look like tags", "({{! {{x }}{{!=}})", {"x": 1}, "()"),
]

DELIMITERS = [
    ("pair", "{{=<% %>=}}(<%text%>)", {"text": "Hey!"}, "(Hey!)"),
    ("special characters", "({{=[ ]=}}[text])", {"text": "It worked!"}, "(It worked!)"),
    ("sections", "{{#s}}\n  {{d}}\n{{/s}}\n{{= | | =}}\n|#s|\n  |d|\n|/s|\n", {"s": True, "d": 1}, "  1\n  1\n"),
    ("old delimiters become text", "{{= | | =}}{{x}} |x|", {"x": 1}, "{{x}} 1"),
    ("standalone", "Begin.\n  {{=@ @=}}\nEnd.\n", {}, "Begin.\nEnd.\n"),
    ("inline keeps blanks", "| {{=@ @=}} |", {}, "|  |"),
    ("padding", "|{{=   @   @   =}}|", {}, "||"),
    ("and back", "{{=<% %>=}}<%={{ }}=%>{{x}}", {"x": 1}, "1"),
]

PARTIALS = [
    ("basic", '"{{>text}}"', {}, {"text": "from partial"}, '"from partial"'),
    ("missing", '"{{>text}}"', {}, {}, '""'),
    ("context", '"{{>p}}"', {"text": "content"}, {"p": "*{{text}}*"}, '"*content*"'),
    (
        "recursion",
        "{{>node}}",
        {"content": "X", "nodes": [{"content": "Y", "nodes": []}]},
        {"node": "{{content}}<{{#nodes}}{{>node}}{{/nodes}}>"},
        "X<Y<>>",
    ),
    (
        "nested",
        "{{>outer}}",
        {"a": "hello", "b": "world"},
        {"outer": "*{{a}} {{>inner}}*", "inner": "{{b}}!"},
        "*hello world!*",
    ),
    ("delimiters are not inherited in", "{{=| |=}}|>p|", {"x": 1}, {"p": "{{x}}"}, "1"),
    ("delimiters do not leak out", "{{>p}}{{x}}", {"x": 1}, {"p": "{{=| |=}}.|x|."}, ".1.1"),
    ("inline keeps blanks", "| {{>p}} |", {}, {"p": "\t|\t"}, "| \t|\t |"),
    ("inline indentation is no indentation", "  {{x}}  {{> p}}\n", {"x": "|"}, {"p": ">\n>"}, "  |  >\n>\n"),
    ("carriage returns", "|\r\n{{>p}}\r\n|", {}, {"p": ">"}, "|\r\n>|"),
    ("first line", "  {{>p}}\n>", {}, {"p": ">\n>"}, "  >\n  >>"),
    ("last line", ">\n  {{>p}}", {}, {"p": ">\n>"}, ">\n  >\n  >"),
    (
        "standalone indentation",
        "\\\n {{>p}}\n/\n",
        {"content": "<\n->"},
        {"p": "|\n{{{content}}}\n|\n"},
        "\\\n |\n <\n->\n |\n/\n",
    ),
    ("nested indentation adds up", " {{>a}}\n", {}, {"a": "a\n {{>b}}\n", "b": "b\nb\n"}, " a\n  b\n  b\n"),
    ("padding", "|{{> p }}|", {}, {"p": "[]"}, "|[]|"),
    ("a path is only a name", "({{> ../../etc/passwd }})", {}, {}, "()"),
]


@pytest.mark.parametrize(
    ("template", "data", "expected"),
    [pytest.param(*case[1:], id=case[0]) for case in INTERPOLATION + SECTIONS + WHITESPACE + DELIMITERS],
)
def test_templates_render_as_the_specification_demands(template: str, data: Any, expected: str) -> None:
    assert rendered(template, data) == expected


@pytest.mark.parametrize(
    ("template", "data", "partials", "expected"), [pytest.param(*case[1:], id=case[0]) for case in PARTIALS]
)
def test_partials_render_as_the_specification_demands(
    template: str, data: Any, partials: dict[str, str], expected: str
) -> None:
    assert rendered(template, data, partials) == expected


@pytest.mark.parametrize(
    ("template", "line", "column", "words"),
    [
        ("a\n b {{x", 2, 4, "not closed"),
        ("{{#a}}\n{{#b}}", 2, 1, "'b' is not closed"),
        ("{{/a}}", 1, 1, "never opened"),
        ("{{#a}}x{{/b}}", 1, 8, "{{/a}} is expected"),
        ("{{}}", 1, 1, "no name"),
        ("{{# }}{{/}}", 1, 1, "no name"),
        ("{{=x=}}", 1, 1, "delimiters"),
        ("{{=a b c=}}", 1, 1, "delimiters"),
        ("{{<parent}}", 1, 1, "not supported"),
        ("{{{x}}", 1, 1, "not closed"),
    ],
)
def test_a_syntax_error_names_its_place(template: str, line: int, column: int, words: str) -> None:
    error = refusal(template)
    assert (error.details["line"], error.details["column"]) == (line, column)
    assert words in error.message


def test_output_is_bounded() -> None:
    assert (
        "longer than 1000 characters"
        in refusal("{{x}}{{x}}", {"x": "a" * 600}, limits=RenderLimits(output_chars=1000)).message
    )
    assert len(render("{{x}}", {"x": "a" * 1000}, {}, RenderLimits(output_chars=1000))) == 1000


@pytest.mark.promise("bounds.templates-and-queries")
def test_nested_repetition_runs_out_of_steps_and_not_of_time() -> None:
    data = {"l": [0] * 1000}
    assert "steps" in refusal("{{#l}}{{#l}}{{#l}}{{/l}}{{/l}}{{/l}}", data).message


def test_a_partial_that_includes_itself_ends() -> None:
    assert "include one another" in refusal("{{>p}}", {}, {"p": "{{>p}}"}).message
    assert "steps" in refusal("{{>p}}", {"t": 1}, {"p": "x", "q": ""}, limits=RenderLimits(steps=1)).message
    doubling = {f"p{n}": f"{{{{>p{n + 1}}}}}{{{{>p{n + 1}}}}}" for n in range(60)}
    assert "steps" in refusal("{{>p0}}", {}, doubling).message


def test_growing_indentation_is_paid_for() -> None:
    assert refusal(" {{>p}}\n", {}, {"p": "x\n" * 2000 + " {{>p}}\n"}).message


def test_sections_nest_to_a_bound() -> None:
    assert "nested more than" in refusal("{{#a}}" * 65 + "{{/a}}" * 65).message
    deep: Any = {"a": 1}
    assert rendered("{{#a}}" * 64 + "x" + "{{/a}}" * 64, deep) == "x"


@pytest.mark.parametrize("piece", ["{{", "}}", "{{x}}", "{{!", " \t", "\n ", "{{#a}}", "{{=a b=}}", "{{{"])
def test_a_megabyte_of_any_piece_is_settled_at_once(piece: str) -> None:
    template = piece * (1_000_000 // len(piece))
    text = outcome(rendered, template)
    assert isinstance(text, str) or text.kind is ErrorKind.INVALID_INPUT


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab<{}", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
TEMPLATE = st.lists(
    st.sampled_from(
        [
            "{{",
            "}}",
            "{{{",
            "}}}",
            "#",
            "^",
            "/",
            ">",
            "!",
            "=",
            "&",
            "<",
            "a",
            "b.c",
            ".",
            " ",
            "\n",
            "\r\n",
            "| |",
            "{{#a}}",
            "{{/a}}",
        ]
    ),
    max_size=24,
).map("".join)


@given(TEMPLATE, JSON, st.dictionaries(st.sampled_from("ab"), TEMPLATE, max_size=2))
def test_any_template_renders_or_is_refused(template: str, data: Any, partials: dict[str, str]) -> None:
    text = outcome(render, template, data, partials, RenderLimits(steps=2000, output_chars=5000))
    if isinstance(text, ToolError):
        assert text.kind is ErrorKind.INVALID_INPUT
    else:
        assert len(text) <= 5000


@given(st.text(st.characters(exclude_characters="{")))
def test_text_without_tags_is_itself(text: str) -> None:
    assert rendered(text) == text
