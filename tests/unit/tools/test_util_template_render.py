from __future__ import annotations

from tests.fakes.util_context import bare_context, called, refused
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.tools.mustache import RenderLimits
from toolhub_service.tools.util_tools import TemplateRender, util_tools


async def test_templates_render_with_data_and_partials() -> None:
    context = bare_context()
    result = await called(
        TemplateRender(), context, template="{{>p}} {{a.b}}", data={"a": {"b": 1}}, partials={"p": "<{{a.b}}>"}
    )
    assert result == {"text": "<1> 1"}
    assert len(context.evidence) == 1


async def test_data_and_partials_may_be_left_out() -> None:
    assert await called(TemplateRender(), template="x{{y}}{{>z}}") == {"text": "x"}


async def test_the_example_works() -> None:
    (example,) = TemplateRender.examples
    assert await called(TemplateRender(), **example.args) == {"text": "# Fruit\n- fig\n- plum\n"}


async def test_limits_come_from_the_constructor() -> None:
    error = await refused(TemplateRender(RenderLimits(output_chars=3)), template="abcd")
    assert error.kind is ErrorKind.INVALID_INPUT
    assert error.details == {"max_chars": 3}


def test_the_util_tools_only_read_and_need_nothing() -> None:
    class Clock:
        def monotonic_s(self) -> float:
            return 0.0

        def unix_ms(self) -> int:
            return 0

    tools = util_tools(Clock())
    assert TemplateRender in map(type, tools)
    for tool in tools:
        assert tool.name.startswith("core/util.")
        assert tool.annotations.read_only
        assert tool.annotations.idempotent
        assert not tool.capabilities
        assert tool.examples
        assert not tool.unavailable_reason()
