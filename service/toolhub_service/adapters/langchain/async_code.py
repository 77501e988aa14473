"""Whether a tool's own async code can run on the event loop, where it can be cancelled.

`BaseTool._arun` runs `_run` in a thread that nothing can stop, and much code that is only formally async does the same
or worse: it calls `_run`, passes a function to an executor, or only raises. All of these belong in a worker process.
What an async function does is inferred from the names in its byte code, without running it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

from langchain_core.tools import BaseTool, StructuredTool, Tool

_TO_THREADS: Final = frozenset({"_run", "run_in_executor", "to_thread", "run_sync"})
_REFUSING: Final = frozenset({"NotImplementedError", "self", "__class__", "__name__", "name", "type"})
# LangChain's own async wrappers (of runnables and retrievers) run what they wrap in a thread unless that is async.
_WRAPPERS: Final = "langchain_core."


def runs_on_loop(tool: BaseTool) -> bool:
    """Return whether it is called on the event loop; otherwise by `invoke` in a worker process."""
    code = _async_code(tool)
    if code is None:
        return False
    return not _has_sync_code(tool) or _is_async_at_heart(code)


def is_generator(tool: BaseTool) -> bool:
    """Return whether calling it returns a generator instead of a result."""
    functions = (getattr(tool, "coroutine", None), getattr(tool, "func", None), _method(tool, "_run"))
    return any(
        inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)
        for function in (*functions, _method(tool, "_arun"))
        if function is not None
    )


def _async_code(tool: BaseTool) -> Callable[..., Any] | None:
    arun = _method(tool, "_arun")
    if arun is _method(BaseTool, "_arun"):
        return None
    # These two only call the function that the tool was made from, so that one is inspected.
    if arun in (_method(StructuredTool, "_arun"), _method(Tool, "_arun")):
        coroutine: Callable[..., Any] | None = getattr(tool, "coroutine", None)
        return coroutine
    return arun


def _has_sync_code(tool: BaseTool) -> bool:
    run = _method(tool, "_run")
    if run in (_method(StructuredTool, "_run"), _method(Tool, "_run")):
        return getattr(tool, "func", None) is not None
    code = getattr(run, "__code__", None)
    return code is None or not _only_refuses(code)


def _method(tool: BaseTool | type[BaseTool], name: str) -> Callable[..., Any]:
    """Return the method as its class defines it."""
    function: Callable[..., Any] = getattr(tool if isinstance(tool, type) else type(tool), name)
    return function


def _is_async_at_heart(function: Callable[..., Any]) -> bool:
    # A decorator's wrapper does not show what it wraps.
    function = inspect.unwrap(function)
    if str(getattr(function, "__module__", "")).startswith(_WRAPPERS):
        return False
    code = getattr(function, "__code__", None)
    if code is None or not inspect.iscoroutinefunction(function):
        return False
    return _TO_THREADS.isdisjoint(code.co_names) and not _only_refuses(code)


def _only_refuses(code: CodeType) -> bool:
    """Return whether the body is only `raise NotImplementedError(…)`."""
    return "NotImplementedError" in code.co_names and _REFUSING.issuperset(code.co_names)
