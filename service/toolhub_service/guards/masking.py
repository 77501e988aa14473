"""Known values taken out of what was read, and nothing else: for text whose wording counts, such as a definition.

The redactor also judges by names and shapes, and by what the whole hub knows; a schema with a property `password` would
lose it, and a digest over the text would change whenever the hub learnt something. A mask hides the values that it was
made with, in every usual spelling, wherever they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import re2
import yaml

from toolhub_service.domain.error_spec import StartReason
from toolhub_service.domain.errors import HubFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.secret_patterns import is_secret_name, known_pattern
from toolhub_service.guards.secrets import MARK
from toolhub_service.guards.urls import ParsedUrl

# What a PostgreSQL URL (or `key=value` text) asks for, what every connection of the hub needs, and how to show it.
#
# Its own text never reaches a message: libpq repeats what it could not read, and a URL holds a password.

_UNLESS_SAID: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    # A peer that vanished without a word is noticed after about ten seconds, waiting or sending.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


@dataclass(frozen=True, slots=True)
class PostgresTarget:
    conninfo: str
    """For psycopg; holds the password."""
    shown: str
    """`host:port/database`, for messages."""


def postgres_target(url: str, *, application: str) -> PostgresTarget:
    """`application` is how the server names the connection. Raises HubFailure POSTGRES_URL_INVALID."""
    from psycopg import ProgrammingError  # of an extra: a hub without PostgreSQL does not have it
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        asked: dict[str, Any] = conninfo_to_dict(url)
    except ProgrammingError:
        message = "stores.postgres_url cannot be read: write postgresql://user:password@host:5432/database."
        raise HubFailure(StartReason.POSTGRES_URL_INVALID, message) from None
    wanted = _UNLESS_SAID | {"fallback_application_name": application} | asked
    host = asked.get("host") or asked.get("hostaddr") or "local socket"
    return PostgresTarget(make_conninfo(**wanted), f"{host}:{asked.get('port', 5432)}/{asked.get('dbname', '')}")


# A URL as it may stand in evidence and messages: no user name, no password, no fragment, no secret in its query.

_SHOWN_MAX_CHARS = 2_000
_SECRET_NAMES = frozenset({"assertion", "code", "key", "pin", "samlresponse", "sid", "sig", "signature", "state"})


def shown_url(url: ParsedUrl) -> str:
    """The URL with the values of query parameters redacted whose names look secret; at most 2,000 characters."""
    target, question, query = url.target.partition("?")
    values = "&".join(map(_shown_parameter, query.split("&")))
    shown = f"{url.scheme}://{url.authority}{target}{question}{values if query else ''}"
    return shown if len(shown) <= _SHOWN_MAX_CHARS else shown[:_SHOWN_MAX_CHARS] + "…"


def _shown_parameter(parameter: str) -> str:
    name, equals, _ = parameter.partition("=")
    if equals and (
        name.lower().removeprefix("x-amz-").removeprefix("x-goog-") in _SECRET_NAMES or is_secret_name(name)
    ):
        return f"{name}={MARK}"
    return parameter


_MARK: Final = MARK.encode()


class Mask:
    """Safe to share between threads."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        pattern = known_pattern(values)
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.log_errors = False
        self._known = re2.compile(pattern, options) if pattern else None

    def finds(self, data: bytes) -> bool:
        """Whether one of the values occurs in the text (UTF-8, or JSON)."""
        return self._known is not None and self._known.search(data) is not None

    def text(self, text: str) -> str:
        if self._known is None:
            return text
        data = text.encode("utf-8", "surrogatepass")
        return cast(bytes, self._known.sub(_MARK, data)).decode("utf-8", "surrogatepass")

    def object(self, value: JsonObject) -> JsonObject:
        """Names and values of all levels; no deeper than the interpreter recurses, which is the caller's to know."""
        return {self.text(name): self.value(member) for name, member in value.items()}

    def value(self, value: JsonValue) -> JsonValue:
        """As `object`."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return self.object(value)
        if isinstance(value, Sequence):
            return [self.value(item) for item in value]
        return value


# What is wrong with a YAML file, in plain words and without any of its text: PyYAML quotes the line, and a password may
# stand there. PyYAML also names tokens of its grammar, which nobody who edits a file knows.

_YAML_TOKENS: Final = {
    "<stream end>": "the end of the file",
    "<scalar>": "a value",
    "<block mapping start>": "a key",
    "<block sequence start>": "a list",
    "<block end>": "a line with less indentation",
    "<alias>": "an alias (`*`)",
    "<anchor>": "an anchor (`&`)",
    "<tag>": "a tag (`!`)",
    "<document start>": "`---`",
    "<document end>": "`...`",
    "<directive>": "a directive (`%`)",
}
_YAML_PROBLEMS: Final = (
    (r"expected ',' or '(.)', but got '(.+)'", "`,` or {0} is missing before {1}"),
    (r"expected the node content, but found '(.+)'", "a value is missing before {0}"),
    (
        r"expected (?:<block end>|'<document start>'), but found '(.+)'",
        "{0} is not expected here: check the indentation",
    ),
    (r"could not find expected ':'", "a key has no `:` after it"),
    (r"mapping values are not allowed here", "`:` is not allowed here: check the indentation, or quote the value"),
    (r"sequence entries are not allowed here", "`-` is not allowed here: each entry of a list begins a line"),
    (r"found character '\\t' that cannot start any token", "a tab is not allowed here: indent with spaces"),
    (r"found character '(.)' that cannot start any token", "a value cannot begin with {0}: put it in quotes"),
    (r"found unexpected end of stream", "a quote is not closed before the end of the file"),
)
_YAML_QUOTED: Final = re.compile(r"'[^'<]{4,}'")
"""An alias or a tag; signs such as ',' are shorter."""


def yaml_fault(broken: yaml.MarkedYAMLError) -> tuple[str, int, int]:
    """(what is wrong, line, column), both from 1 and 0 where PyYAML gives no place."""
    problem = broken.problem or broken.context or "it cannot be read"
    what = _YAML_QUOTED.sub("'…'", problem)
    for pattern, words in _YAML_PROBLEMS:
        if found := re.fullmatch(pattern, problem):
            what = words.format(*(_YAML_TOKENS.get(token, f"`{token}`") for token in found.groups()))
    begun, mark = broken.context_mark, broken.problem_mark or broken.context_mark
    if begun is not None and mark is not None and begun.line != mark.line and " is missing before " in what:
        what += f"; what it belongs to begins in line {begun.line + 1}"
    return (what, mark.line + 1, mark.column + 1) if mark else (what, 0, 0)


def yaml_problem(broken: Exception) -> str:
    """One line: what is wrong with a YAML file, and where."""
    if not isinstance(broken, yaml.MarkedYAMLError):
        return "it is not UTF-8" if isinstance(broken, UnicodeDecodeError) else type(broken).__name__
    what, line, column = yaml_fault(broken)
    return f"{what} (line {line}, column {column})" if line else what
