"""Logs: structlog to stderr, as JSON lines or for people, with every event redacted as its last step before rendering.

Records of other libraries through `logging` take the same path. The trace id is read from the context when something is
logged, not bound when a call starts: a call that logs nothing costs nothing.
"""

from __future__ import annotations

import logging
import sys
import textwrap
import threading
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Literal, TextIO, cast

import orjson
import structlog
from structlog.types import EventDict, Processor, WrappedLogger
from structlog.typing import FilteringBoundLogger

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.guards.foreign_text import escape_hidden
from toolhub_service.guards.secrets import Redactor
from toolhub_service.telemetry.trace_context import current_trace_id

# Libraries whose records are shown from WARNING on, unless the level is DEBUG.
_QUIET = ("asyncio", "grpc")
# Libraries whose records are shown from WARNING on at every level: below it they write URLs, header fields, frames and
# statements as they send and receive them, which may hold secrets that no redactor knows.
_WRITE_TRAFFIC = (
    "aiohttp",
    "h2",
    "hpack",
    "httpcore",
    "httpcore2",
    "httpx",
    "httpx2",
    "openai",
    "psycopg",
    "redis",
    "requests",
    "urllib3",
    "websockets",
)


def configure_logging(
    *, level: str, form: Literal["json", "console"], redactor: Redactor, stream: TextIO | None = None
) -> None:
    """Send all logs, ours and those of `logging`, through one pipeline. `level` is a name such as `INFO`.

    Raises ValueError when the level has no such name.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r} is none of {', '.join(logging.getLevelNamesMapping())}")
    before = _processors()
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            # Before the redaction: a traceback quotes values of the program, and is text from here on.
            structlog.processors.format_exc_info,
            _Redaction(redactor),
            *([_on_lines] if form == "console" else []),
            _renderer(form),
        ],
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    # Replaces the handlers of libraries: a second handler would write unredacted lines.
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(number, logging.WARNING) if number > logging.DEBUG else number)
    for name in _WRITE_TRAFFIC:
        library = logging.getLogger(name)
        # An adapter may have silenced its library altogether.
        library.setLevel(max(number, logging.WARNING, library.level))
    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        # Cached: loggers are made at import, and otherwise each line would rebuild its chain of processors.
        cache_logger_on_first_use=True,
    )


def log_process_faults() -> None:
    """Log what Python and libraries would print as plain text: warnings, exceptions that nothing catches, and records
    of loggers that have handlers of their own, which would be printed twice. For a process that serves, once its logs
    are configured."""
    logging.captureWarnings(capture=True)
    for library in list(logging.root.manager.loggerDict.values()):
        # One that does not propagate was silenced, or its records go somewhere else.
        if isinstance(library, logging.Logger) and library.propagate:
            library.handlers[:] = [each for each in library.handlers if not isinstance(each, logging.StreamHandler)]
    log = logger("toolhub")

    def report(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error or kind(), trace)
        else:
            log.critical("exception_not_caught", exc_info=(kind, error, trace))

    sys.excepthook = report
    threading.excepthook = lambda args: report(args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: report(args.exc_type, args.exc_value, args.exc_traceback)


def logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger; `name` becomes the field `logger`."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger(name))


def _processors() -> list[Processor]:
    return [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _add_ids,
    ]


def _add_ids(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Add the trace id to a line that has none."""
    trace_id = current_trace_id()
    if trace_id:
        event.setdefault("trace_id", trace_id)
    return event


class _Redaction:
    """The processor that redacts every event, from any logger and with any content."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        shown = self._redactor.value(dict(event))
        return cast("MutableMapping[str, Any]", shown)


def log_trouble(log: FilteringBoundLogger, event: str, problem: BaseException, **ids: str) -> None:
    """Log an error that will be retried: a failure by its message, a defect with its traceback."""
    if isinstance(problem, ToolFailure):
        log.warning(event, **ids, problem=problem.error.message)
    else:
        log.warning(event, **ids, exc_info=problem)


def _on_lines(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Keep each event on its line, so that no text imitates another event; the lines of a traceback are indented."""
    for name, value in event.items():
        if isinstance(value, str) and "\n" in value:
            is_trace = name == "exception"
            event[name] = textwrap.indent(value, _TRACE_INDENT) if is_trace else value.replace("\n", "\\n")
    return event


def _renderer(form: Literal["json", "console"]) -> Processor:
    if form == "console":
        console = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
        return lambda log, method, event: escape_hidden(console(log, method, event))
    return structlog.processors.JSONRenderer(serializer=_json)


_TRACE_INDENT = "    "
_FIRST = ("time", "level", "event")
"""Width of the first column, for people."""


def _json(event: EventDict, **_: object) -> str:
    event = {name: event[name] for name in _FIRST if name in event} | dict(event)
    try:
        return escape_hidden(orjson.dumps(event, default=str).decode())
    except TypeError:
        # orjson refuses keys that are not strings and integers beyond 64 bits; that must not lose a line.
        return escape_hidden(orjson.dumps({name: repr(value) for name, value in event.items()}, default=str).decode())
