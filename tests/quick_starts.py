"""What each start of a hub works out anew and always the same is worked out once in a process of tests.

A process that serves starts one hub; one that tests starts hundreds, and two thirds of each start are these. Hubs in
processes of their own start as they are.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.metadata import EntryPoints
from typing import Any

import msgspec
import protovalidate

from toolhub_service.adapters import custom
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.egress import transport
from toolhub_service.policy import decide, parsing
from toolhub_service.search import analyser as analyser_module
from toolhub_service.search import query
from toolhub_service.tools import tool, util_tools
from toolhub_service.transport import envelope

_CUSTOM: Any = custom
_TIME: Any = util_tools
_ENVELOPE: Any = envelope
_QUERY: Any = query
_DECIDE: Any = decide
_default_tls, _entry_points, _schema_of = transport._default_tls, _CUSTOM.entry_points, tool.schema_of
_begin_analyser = analyser_module.Analyser.__init__
_WORDS: dict[str, tuple[Any, ...]] = {}


class _OneValidator:
    """In the place of protovalidate: it compiles the rules of each message when it sees the first."""

    Validator = staticmethod(cache(protovalidate.Validator))


@cache
def _tls_of(*_: str | None) -> ssl.SSLContext:
    return _default_tls()


@cache
def _entry_points_on(_: tuple[str, ...], group: str) -> EntryPoints:
    found: EntryPoints = _entry_points(group=group)
    return found


@cache
def _schema_json(struct: type[msgspec.Struct]) -> bytes:
    return msgspec.json.encode(_schema_of(struct))


def _fresh_schema(struct: type[msgspec.Struct]) -> JsonObject:
    schema: JsonObject = msgspec.json.decode(_schema_json(struct))
    return schema


def _begin_with_known_words(analyser: analyser_module.Analyser) -> None:
    _begin_analyser(analyser)
    analyser._known = _WORDS


_parsed_text = lru_cache(256)(parsing.parse_policy)


def _parsed(source: str | Mapping[str, JsonValue]) -> Any:
    return _parsed_text(source) if isinstance(source, str) else parsing.parse_policy(source)


def remember() -> None:
    """From here on, in this process."""
    transport._default_tls = lambda: _tls_of(*(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")))
    tool.schema_of = _fresh_schema
    _CUSTOM.entry_points = lambda group: _entry_points_on(tuple(sys.path), group)
    _TIME.available_timezones = cache(_TIME.available_timezones)
    _ENVELOPE.protovalidate = _OneValidator
    _DECIDE.parse_policy = _parsed
    _QUERY.Analyser.__init__ = _begin_with_known_words
