"""A process that makes text from pages, one after another, so that harm to a parser stays here.

It imports the standard library, the `web` extra and `page_text`. Standard input is, per page, one line of JSON, then
`bytes` of it; standard output is one line of JSON. The process limits its own memory and its time per page. Engines are
tried in turn, each with its share of processor seconds: trafilatura, readability, then plain text.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolhub_service.tools.web.page_text import PageText, decode_page, refresh_of, title_of, without_tags

MEMORY_BYTES = 1024 * 1024 * 1024
_CPU_A_PAGE_S = 20
# Processor time of one engine for a page, in seconds.
_SHARE_S = 3.0
# trafilatura takes quadratic time: 1 MB in 2 s, 5 MB in a minute.
_TRAFILATURA_MAX_CHARS = 1_000_000
_READABILITY_MAX_CHARS = 3_000_000
_PIECE_CHARS = 256 * 1024


# Not an Exception, which a library's own `except Exception` would swallow.
class _Late(BaseException):
    """The time of an engine is over."""


def _ring(_number: int, _frame: object) -> None:
    raise _Late


def _run_within(seconds: float, work: Callable[[], str]) -> str:
    """Return the result; empty when the work fails or is late."""
    # Processor time, not wall time: a busy machine must not change which engine reads a page.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return work() or ""
    except (_Late, Exception):  # noqa: BLE001 - libraries on hostile input: whatever they raise, the next one is tried
        return ""
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _by_trafilatura(page: str, url: str, markdown: bool) -> str:
    import trafilatura

    found: str | None = trafilatura.extract(
        page,
        url=url,
        fast=True,
        output_format="markdown" if markdown else "txt",
        include_links=markdown,
        include_formatting=markdown,
        include_comments=False,
    )
    return found or ""


def _by_readability(page: str, url: str, markdown: bool) -> str:
    from readability import Document  # type: ignore[import-untyped, unused-ignore]

    parser = PageText(url, markdown=markdown)
    parser.feed(Document(page).summary())
    parser.close()
    return parser.text()


@dataclass(slots=True)
class _Plain:
    """A page in one pass, as far as the time allows."""

    parser: PageText
    is_whole: bool = False

    def read(self, page: str) -> str:
        # In pieces: Python runs a signal's handler only between its own steps, and one match may take long.
        for at in range(0, len(page), _PIECE_CHARS):
            self.parser.feed(page[at : at + _PIECE_CHARS])
        self.parser.close()
        self.is_whole = True
        return ""


def _plain(page: str, url: str, markdown: bool) -> _Plain:
    plain = _Plain(PageText(url, markdown=markdown))
    _run_within(_SHARE_S, lambda: plain.read(page))
    return plain


def _text_of_html(page: str, url: str, markdown: bool, links: bool) -> dict[str, Any]:
    """Return text, engine, links, and whether some of it is missing."""
    engines: list[tuple[str, Callable[[], str]]] = []
    if len(page) <= _TRAFILATURA_MAX_CHARS:
        engines.append(("trafilatura", lambda: _by_trafilatura(page, url, markdown)))
    if len(page) <= _READABILITY_MAX_CHARS:
        engines.append(("readability", lambda: _by_readability(page, url, markdown)))
    text, engine, is_cut = "", "", False
    for name, work in engines:
        if text := _run_within(_SHARE_S, work).strip():
            engine = name
            break
    plain = _plain(page, url, markdown) if links or not text else None
    if not text and plain is not None:
        text = plain.parser.text()
        engine = "plain"
        is_cut = not plain.is_whole
        # The pass was too slow for any text; a plain removal of tags always ends.
        if not text and is_cut:
            text = without_tags(page)
            engine = "tags-removed"
    found = plain.parser.links if links and plain is not None else []
    return {"text": text, "engine": engine, "links": found, "is_cut": is_cut}


def read_page(asked: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Return a page's text of at most `max_chars`, title, charset, engine, and the links if requested."""
    page, charset = decode_page(data, asked["charset"], is_cut=asked["is_cut"])
    reading: dict[str, Any] = {"text": page, "engine": "none", "links": [], "is_cut": False}
    if asked["html"]:
        reading = _text_of_html(page, asked["url"], asked["markdown"], asked["links"])
    limit = asked["max_chars"]
    reading["is_cut"] = reading["is_cut"] or len(reading["text"]) > limit
    reading["text"] = reading["text"][:limit]
    title, refresh = (title_of(page), refresh_of(page, asked["url"])) if asked["html"] else ("", "")
    return {**reading, "title": title, "refresh": refresh, "charset": charset}


def _bound_cpu() -> None:
    """Limit the processor time for the next page, on top of the time already used."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    # RLIMIT_CPU counts from the process's start, so it is raised for each page.
    seconds = int(spent.ru_utime + spent.ru_stime) + _CPU_A_PAGE_S
    # Only the soft limit is changed: a hard one, once lowered, cannot be raised again.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def main() -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _ring)
    # The engines log each page that they cannot handle.
    logging.disable(logging.CRITICAL)
    # Output of libraries must not pass for an answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for library in ("lxml.html", "readability", "trafilatura"):  # so that the first page does not wait for it
        importlib.import_module(library)

    questions = sys.stdin.buffer
    while line := questions.readline():
        asked = json.loads(line)
        data = questions.read(asked["bytes"])
        _bound_cpu()
        answer = json.dumps(read_page(asked, data)).encode()
        answers.write(answer + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
