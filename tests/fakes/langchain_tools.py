"""LangChain tools of every kind: async, sync, badly behaved, with traps. Loaded by the hub and by its workers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from langchain_core.callbacks import AsyncCallbackManagerForToolRun, CallbackManagerForToolRun
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import (
    BaseTool,
    BaseToolkit,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    Tool,
    ToolException,
    tool,
)
from pydantic import BaseModel, Field, field_validator


@dataclass(slots=True)
class CallEvents:
    """Events between tests and async tools; made anew by each test."""

    started: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)


call_events = CallEvents()


def new_call_events() -> CallEvents:
    global call_events  # noqa: PLW0603 - tools are module-level objects, as everybody writes them
    call_events = CallEvents()
    return call_events


# --- on the event loop


@tool
async def echo(text: str = "") -> str:
    """Say it again."""
    return text


@tool
async def peeks(file_path: str) -> str:
    """Read a file of the machine."""
    await asyncio.sleep(0)
    with open(file_path) as file:  # noqa: ASYNC230, PTH123 - as many async tools do
        return file.read()


@tool
async def refuses() -> str:
    """Refuse, in words for a model."""
    raise ToolException("There is no such order. Ask for a number from the list.")


@tool
async def crashes(text: str = "") -> str:
    """Raise an unforeseen exception."""
    raise RuntimeError(f"leaked {text}")


@tool
async def waits() -> str:
    """Wait until it is let go."""
    mine = call_events
    mine.started.set()
    try:
        await mine.let_go.wait()
    finally:
        mine.stopped.set()
    return "let go"


@tool
async def exits() -> str:
    """Call sys.exit, as a script would."""
    sys.exit(3)


@tool
async def gives_up() -> str:
    """Cancel itself."""
    raise asyncio.CancelledError


async def _handled(text: str) -> str:
    raise ToolException(f"cannot: {text}")


handled = StructuredTool.from_function(
    coroutine=_handled, name="handled", description="Fail with a handled error.", handle_tool_error=True
)


@tool(response_format="content_and_artifact")
async def charted(kind: str = "json") -> tuple[str, Any]:
    """Give a text and something besides."""
    artifacts: dict[str, Any] = {
        "json": {"rows": [1, 2]},
        "bytes": b"1234",
        "object": threading.Lock(),
        "large": "x" * 10_000,
        "model": Point(x=1),
    }
    return "see the artifact", artifacts[kind]


@tool
async def blocks() -> list[dict[str, str]]:
    """Give content blocks."""
    return [{"type": "text", "text": "one"}, {"type": "image_url", "url": "x"}, {"type": "text", "text": "two"}]


@tool
async def lengthy(size: int) -> str:
    """Give a long text."""
    return "x" * size


@tool
async def broken_text() -> str:
    """Give half of a surrogate pair."""
    return "a\ud800b"


@tool
async def own_message(tool_call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
    """Give a message of its own making."""
    return ToolMessage("mine", tool_call_id=tool_call_id, artifact=[1])


@tool
async def whoami(
    question: str,
    user: Annotated[str, InjectedToolArg],
    tool_call_id: Annotated[str, InjectedToolCallId],
) -> str:
    """Say who asked."""
    return f"{question}/{user}/{tool_call_id}"


@tool
async def needs_state(question: str, state: Annotated[dict[str, Any], InjectedToolArg]) -> str:
    """Needs what nobody gives."""
    return question


async def _dict_schema(**given: Any) -> str:
    return str(sorted(given.items()))


dict_schema = StructuredTool(
    name="dict_schema",
    description="Arguments as plain JSON Schema.",
    args_schema={
        "type": "object",
        "properties": {"count": {"type": "integer", "default": 3}},
        "required": [],
    },
    coroutine=_dict_schema,
)


async def _secretive(question: str, user: Annotated[str, InjectedToolArg] = "nobody") -> str:
    return f"{question}/{user}"


listed_injection = StructuredTool(
    name="listed_injection",
    description="A schema that lists what must be injected.",
    args_schema={
        "type": "object",
        "properties": {"question": {"type": "string"}, "user": {"type": "string"}},
        "required": ["question", "user"],
        "additionalProperties": True,
    },
    coroutine=_secretive,
)


class Point(BaseModel):
    x: int


class EvenInput(BaseModel):
    number: int = Field(description="Even.")

    @field_validator("number")
    @classmethod
    def _even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("must be even")
        return number


@tool(args_schema=EvenInput)
async def even(number: int) -> str:
    """Take an even number."""
    return str(number)


@tool
async def reads_badly() -> str:
    """Meet a validation error of its own."""
    Point.model_validate({"x": "secret-of-the-upstream"})
    return ""


@tool
async def nested(text: str, config: RunnableConfig) -> str:
    """Run another tool and a chain inside."""
    inner = await echo.ainvoke({"text": text}, config=config)
    chained: str = await RunnableLambda(_shout).ainvoke(inner, config=config)
    return chained


async def _shout(text: str) -> str:
    return text.upper()


@tool
async def streams() -> AsyncIterator[str]:
    """Give a generator."""
    yield "a"


class WithoutSchema(BaseTool):
    """Its arguments have no JSON Schema."""

    name: str = "unspeakable"
    description: str = "Takes a function."

    def _run(self, function: Callable[[], str]) -> str:
        return function()


# --- in worker processes


@tool
def add(a: int, b: int = 2) -> str:
    """Add, slowly enough to be anywhere."""
    return f"{a + b} in {os.getpid()}"


@tool
def sleeps() -> str:
    """Never come back."""
    while True:
        time.sleep(3600)


@tool
def dies(how: str) -> str:
    """End the process."""
    if how == "exit":
        os._exit(7)
    if how == "sys.exit":
        sys.exit(7)
    os.kill(os.getpid(), signal.SIGSEGV)
    return ""


@tool
def prints(lines: int) -> str:
    """Write to standard output and error, as many do."""
    for number in range(lines):
        print(f"line {number} of password=hunter2-printed")
        os.write(1, b"raw \x00\xff bytes")
    print("to stderr", file=sys.stderr)
    return "printed"


@tool
def forks(then: str) -> str:
    """Leave children behind."""
    if then == "returns twice":
        os.fork()
        return f"from {os.getpid()}"
    child = subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; sleep 1000"], stdout=subprocess.DEVNULL)
    report(then, f"{child.pid}")
    while True:
        time.sleep(3600)


@tool
def leaves_a_daemon(door: str) -> str:
    """Start a program in a session of its own, whose parent ends at once, and never come back."""
    script = "setsid sh -c 'trap \"\" TERM; exec sleep 1000' >/dev/null 2>&1 & echo $!"
    started = subprocess.run(["/bin/sh", "-c", script], stdout=subprocess.PIPE, check=True, text=True)
    report(door, started.stdout.strip())
    while True:
        time.sleep(3600)


@tool
def holds_on(door: str) -> str:
    """Notify the test that it runs, then wait for a word or for ever."""
    return report(door, str(os.getpid()))


@tool
def sync_crashes(text: str = "") -> str:
    """Raise an unforeseen exception, in a worker."""
    raise RuntimeError(f"leaked {text}")


@tool
def sync_refuses() -> str:
    """Refuse, in a worker."""
    raise ToolException("Not today.")


@tool
def sync_lengthy(size: int) -> str:
    """Give a long text, in a worker."""
    return "x" * size


@tool
def environment() -> str:
    """Say what the process was given."""
    return "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()))


class Tracers(BaseTool):
    """Names the handlers that listen to the call."""

    name: str = "tracers"
    description: str = "Name the handlers that listen to this call."

    def _run(self, run_manager: CallbackManagerForToolRun | None = None) -> str:
        return _listening(run_manager)


class LoopTracers(Tracers):
    name: str = "loop_tracers"

    async def _arun(self, run_manager: AsyncCallbackManagerForToolRun | None = None) -> str:
        return _listening(run_manager)


def _listening(run_manager: Any) -> str:
    return ",".join(sorted(type(handler).__name__ for handler in run_manager.handlers)) or "nobody"


@tool
def sync_nested(text: str, config: RunnableConfig) -> str:
    """Run another tool inside, in a worker."""
    inner: str = add.invoke({"a": len(text)}, config=config)
    return inner


@tool
def sync_nested_failing(config: RunnableConfig) -> str:
    """Run a tool that fails inside."""
    return str(sync_crashes.invoke({"text": "canary"}, config=config))


def report(door: str, word: str) -> str:
    """Say a word at a Unix socket, and wait for what is said there."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(door)
        caller.sendall(word.encode() + b"\n")
        return caller.recv(100).decode()


class Unpicklable(BaseTool):
    """Holds a lock, as clients do; nothing of it could be sent to another process."""

    name: str = "unpicklable"
    description: str = "Works anyway."
    lock: Any = Field(default_factory=threading.Lock)

    def _run(self, text: str, run_manager: CallbackManagerForToolRun | None = None) -> str:
        with self.lock:
            return f"locked {text}"


class BlockingAsync(BaseTool):
    """Async by name only: it would block the event loop."""

    name: str = "pretends_async"
    description: str = "Calls its own sync code."

    def _run(self, text: str) -> str:
        return f"{text} in {os.getpid()}"

    async def _arun(self, text: str) -> str:
        return self._run(text)


class RefusesAsync(BlockingAsync):
    name: str = "refuses_async"

    async def _arun(self, text: str) -> str:
        raise NotImplementedError("RefusesAsync does not support async")


class ThreadsAsync(BlockingAsync):
    name: str = "threads_async"

    async def _arun(self, text: str) -> str:
        return await asyncio.to_thread(str, text)


class TrulyAsync(BlockingAsync):
    name: str = "truly_async"

    async def _arun(self, text: str) -> str:
        return text


single = Tool(name="single", func=lambda text: f"got {text}", description="One text and no schema.")
with warnings.catch_warnings(action="ignore"):  # as_tool is said to be in beta
    from_runnable = RunnableLambda(str).as_tool(name="from_runnable", description="A chain.", arg_types={"text": str})

talkative = echo.model_copy(update={"name": "talkative", "verbose": True})

LOOP_TOOLS = [
    *(echo, refuses, crashes, waits, exits, gives_up, handled, charted, blocks, lengthy, broken_text, own_message),
    *(whoami, dict_schema, listed_injection, even, reads_badly, nested, LoopTracers(), TrulyAsync(), talkative),
]
WORKER_TOOLS = [
    *(
        add,
        sleeps,
        dies,
        prints,
        forks,
        leaves_a_daemon,
        holds_on,
        sync_crashes,
        sync_refuses,
        sync_lengthy,
        environment,
        Tracers(),
    ),
    *(
        sync_nested,
        sync_nested_failing,
        Unpicklable(),
        BlockingAsync(),
        RefusesAsync(),
        ThreadsAsync(),
        single,
        from_runnable,
    ),
]
BROKEN_TOOLS = [needs_state, streams, WithoutSchema(), echo]


class Toolkit(BaseToolkit):
    """A toolkit with a setting."""

    prefix: str = "kit"

    def get_tools(self) -> list[BaseTool]:
        return [Tool(name=f"{self.prefix}_one", func=str, description="One."), echo]


def made(prefix: str = "made") -> list[BaseTool]:
    """A function that gives tools."""
    return [
        Tool(name=f"{prefix} one!", func=str, description="Made."),
        Tool(name=f"{prefix}_one_", func=str, description=""),
    ]


def fails(**args: Any) -> list[BaseTool]:
    raise ConnectionError("postgresql://user:hunter2-loading@db/")


nothing = object()
