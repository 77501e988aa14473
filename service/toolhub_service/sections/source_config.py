"""What entries of sources.yaml share: their keys, and values that are references to secrets. Each kind declares its own
keys in its `kind.py`."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Meta

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.guards.headers import Headers, check_request_headers
from toolhub_service.guards.secret_names import is_secret_name

if TYPE_CHECKING:
    from toolhub_service.guards.secrets import Redactor

_WEB: Final = ("http://", "https://")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A group of configuration keys; unknown names are refused."""


class SourceInvalid(ValueError):
    """A source, or the whole document, is invalid; the message says where and why."""


class SecretRef(Section, frozen=True):
    """A value that does not stand in the file. Files that are not absolute count from the folder of sources.yaml."""

    env: Annotated[str, Meta(description="Environment variable of the hub with the value.")] = ""
    file: Annotated[str, Meta(description="File with the value; trailing white space is removed.")] = ""
    prefix: Annotated[str, Meta(description='Prefix of the value, such as "Bearer ".')] = ""


Value = str | SecretRef


class ToolTerms(Section, frozen=True):
    """What the operator says of tools whose own names match; what is left out stays as the source says, or safer."""

    offered: Annotated[bool, Meta(description="false: not offered at all.")] = True
    read_only: Annotated[
        bool | None, Meta(description="true: calls change nothing. A source's own claim is not trusted.")
    ] = None
    idempotent: Annotated[bool | None, Meta(description="true: calling twice has the same effect as calling once.")] = (
        None
    )
    destructive: Annotated[bool | None, Meta(description="false: not destructive, whatever the source says.")] = None
    capabilities: Annotated[
        tuple[str, ...] | None, Meta(description="Capabilities that a principal needs, instead of the source's.")
    ] = None
    timeout_s: Annotated[float, Meta(description="Time limit of a call in seconds.", gt=0)] | None = None
    idle_timeout_s: Annotated[float, Meta(description="Instead of the source's, of kind mcp.", gt=0)] | None = None
    error_pattern: Annotated[
        str, Meta(description="RE2 regular expression: a text result that matches is an error.")
    ] = ""


class Source(Section, frozen=True, tag_field="kind"):
    enabled: Annotated[bool, Meta(description="false: configured, but not connected.")] = True
    capabilities: Annotated[
        tuple[str, ...],
        Meta(description="Capabilities that a principal needs to call its tools; empty: `<kind>:<name>`."),
    ] = ()
    tags: Annotated[tuple[str, ...], Meta(description="Tags of all its tools.")] = ()
    timeout_s: Annotated[
        float,
        Meta(description="Time limit of a call of its tools in seconds, also within a job.", gt=0),
    ] = 60.0
    max_concurrency: Annotated[
        int,
        Meta(
            description="Calls and jobs in flight; 0: the hub's default, and no limit for jobs that run on a "
            "remote server.",
            ge=0,
        ),
    ] = 0
    mcp_text_max_bytes: (
        Annotated[
            int,
            Meta(
                description="Most text of a result for an MCP client in bytes; the whole of a longer one is a resource "
                "that it links to. Default: `server.mcp.text_max_bytes`.",
                ge=1_024,
                le=262_144,
            ),
        ]
        | None
    ) = None
    refresh_s: Annotated[
        float,
        Meta(
            description="Seconds between two reads of its list of tools, unless the source names a time (30 to 300).",
            ge=1,
        ),
    ] = 60.0
    tools: Annotated[
        dict[str, ToolTerms],
        Meta(description="Settings by glob over the tools' own names; later entries override earlier ones."),
    ] = msgspec.field(default_factory=dict)


class ClientTls(Section, frozen=True):
    ca_file: Annotated[str, Meta(description="PEM CAs to trust; empty: the system's.")] = ""
    certificate_file: Annotated[str, Meta(description="PEM client certificate of the hub (mTLS).")] = ""
    key_file: Annotated[str, Meta(description="PEM private key of the certificate.")] = ""


NO_TLS_FILES: Final = ClientTls()
ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]


def check_web(place: str, url: Value) -> None:
    """Raises SourceInvalid when a literal URL is neither http nor https."""
    if isinstance(url, str) and url and not url.startswith(_WEB):
        raise SourceInvalid(f"{place}: must begin with http:// or https://")


def named_values(place: str, values: Mapping[str, Value]) -> Iterator[tuple[str, Value]]:
    """Yield each value with its place, such as `headers.Authorization`."""
    return ((f"{place}.{name}", value) for name, value in values.items())


SECRET_MIN_CHARS = 8  # `token: none` in a configuration must not blank every `none` of a log
_SECRET_MAX_BYTES = 64 * 1024
# The password behind a user's name; matched separately, because a text that is not a URL may hold a password too.
_PASSWORD = re.compile(r"[^:/?#@]*:([^/?#@]+)@")
_LINE_MIN_CHARS = 16  # of one of several lines, such as those of a key
_FRAME = "-----"  # begins the first and last line of PEM, which are the same for all keys
_SEGMENT = re.compile(r"[A-Za-z0-9_~.-]{16,}")  # in the path of a secret URL; a shorter one is a word
# Separators between the parts of an Apprise URL.
_PIECES = re.compile(r"[/?&=@:#]+")
# Parameters of a query, or of a connection string of libpq.
_NAMED = re.compile(r"(\w+)\s*=\s*('[^']*'|[^&\s;#]+)")


class ValueMissing(ValueError):
    """A referenced value is missing; the message says where it was looked up, never what was found."""


def resolve_value(value: Value, environment: Mapping[str, str] = os.environ) -> str:
    """Return the literal text, or the value from the environment or a file behind its prefix. Raises ValueMissing."""
    if isinstance(value, str):
        return value
    if value.env:
        held = environment.get(value.env)
        if held is None:
            raise ValueMissing(f"the environment variable {value.env} is not set for the hub")
        return value.prefix + held
    return value.prefix + _file_text(value.file)


def secrets_of_url(url: str) -> Iterator[str]:
    """Yield the password and the values of parameters with names of secrets, both encoded and decoded."""
    named = (value.strip("'") for name, value in _NAMED.findall(url) if is_secret_name(name))
    for password in (*_PASSWORD.findall(url), *named):
        yield from {password, unquote(password)}


def secrets_of_channel(url: str) -> frozenset[str]:
    """Return all that may be secret in an Apprise URL, which has tokens at every place: behind `://`, in path and
    query.

    Host names and words are not included.
    """
    scheme, _, rest = url.partition("://")
    pieces = {piece for piece in _PIECES.split(rest) if _is_token(piece)}
    whole = {url, rest, *_PASSWORD.findall(rest), *secrets_of_url(url), *_of_url(url), *_of_secret_url(url)}
    found = {word for text in whole | pieces for word in (text, unquote(text))}
    return frozenset(word for word in found if len(word) >= SECRET_MIN_CHARS and word != scheme)


def describe_value(value: Value) -> str:
    """Return the value, or for a reference the place that it refers to."""
    return value if isinstance(value, str) else f"{value.prefix}{{{value.env or value.file}}}"


class SourceValues:
    """Resolves the values of one source and registers each secret in them with the redactor first.

    A referenced value is a secret as a whole and in its parts: each long line, the word behind `Bearer`, the password,
    path and query of a URL. In a literal value only what is named as a secret is one: by its key, by a flag before it
    (`--token x`, `--api-key=x`), or as the password of a URL.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self.secrets: frozenset[str] = frozenset()  # all found so far

    def of(self, named: Mapping[str, Value]) -> dict[str, str]:
        """Return each value by its name. Raises ValueMissing, whose message never holds a value."""
        return {name: self.one(value, is_secret=is_secret_name(name)) for name, value in named.items()}

    def all(self, values: Iterable[Value]) -> tuple[str, ...]:
        """Return the words of a command line. Raises ValueMissing."""
        texts = tuple(self.one(value, is_secret=False) for value in values)
        self._learn(_of_command_line(texts))
        return texts

    def one(self, value: Value, *, is_secret: bool = True) -> str:
        """Return one value. Raises ValueMissing."""
        text = resolve_value(value)
        if isinstance(value, SecretRef):
            self._learn((*_parts(text), *_parts(text.removeprefix(value.prefix)), *_of_secret_url(text)))
        elif is_secret:
            self._learn(_parts(text))
        self._learn(_of_url(text))
        return text

    def learn_within(self, value: Any) -> None:
        """Register secrets in nested literal values, found by their names."""
        if isinstance(value, Mapping):
            for name, member in value.items():
                if isinstance(member, str):
                    self.one(member, is_secret=is_secret_name(str(name)))
                else:
                    self.learn_within(member)
        elif isinstance(value, list | tuple):
            for item in value:
                self.learn_within(item)
        elif isinstance(value, str):
            self._learn(_of_url(value))

    def url(self, value: Value) -> str:
        """Return the URL, which is http or https. Raises ValueMissing, and ValueError without the URL in its
        message."""
        url = self.one(value, is_secret=False)
        if not url.startswith(_WEB):
            raise ValueError("its `url` must begin with http:// or https://")
        return url

    def _learn(self, words: Iterable[str]) -> None:
        found = {word for word in words if len(word) >= SECRET_MIN_CHARS}
        self.secrets |= found
        self._redactor.learn(found)


def request_headers(fields: Mapping[str, str]) -> Headers:
    """Return the headers if they may be sent. Raises ValueError, whose message does not hold the header, for one that
    frames a message or would break its line."""
    try:
        return check_request_headers(fields)
    except ToolFailure as failure:
        raise ValueError(f"its `headers` cannot be used: {failure.error.message}") from failure


def _parts(text: str) -> Iterator[str]:
    """Yield the text and the parts that are as secret: x of `Bearer x`, the lines of a key, the password of a `Basic`
    pair."""
    yield text
    word = text.rpartition(" ")[2]
    # The last word of a PEM text is its delimiter, which all keys share.
    if not word.endswith(_FRAME):
        yield word
    if "\n" in text:
        lines = (line for line in map(str.strip, text.splitlines()) if not line.startswith(_FRAME))
        yield from (line for line in lines if len(line) >= _LINE_MIN_CHARS)
    if text[:6].lower() == "basic ":
        try:
            yield base64.b64decode(word, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return


def _of_url(text: str) -> Iterator[str]:
    """Yield what is recognizably a secret in a URL that is otherwise public."""
    if "://" not in text:
        return
    yield from secrets_of_url(text)
    try:
        userinfo = urlsplit(text).netloc.rpartition("@")[0]
    except ValueError:
        return
    user, colon, _ = userinfo.partition(":")
    if user and not colon:
        yield from {user, unquote(user)}  # https://token@host


def _of_secret_url(text: str) -> Iterator[str]:
    """Yield what may be a secret in a URL that is secret as a whole."""
    if "://" not in text:
        return
    try:
        parts = urlsplit(text)
    except ValueError:
        return
    yield from (value for _, value in parse_qsl(parts.query))
    yield from _SEGMENT.findall(parts.path)


def _is_token(piece: str) -> bool:
    """Return whether the piece reads like a token: no dot, and digits or capitals, unlike words and host names."""
    return "." not in piece and (any(map(str.isdigit, piece)) or not piece.islower())


def _of_command_line(words: tuple[str, ...]) -> Iterator[str]:
    """Yield x of `--token x`, `--api-key=x` and `TOKEN=x`."""
    for before, word in zip(("", *words), words, strict=False):
        name, equals, value = word.partition("=")
        if equals and is_secret_name(name):
            yield value
        elif before.startswith("-") and "=" not in before and not word.startswith("-") and is_secret_name(before):
            yield word


def _file_text(path: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(_SECRET_MAX_BYTES + 1)
        if len(data) > _SECRET_MAX_BYTES:
            raise ValueMissing(f"{path} is larger than {_SECRET_MAX_BYTES:,} bytes")
        return data.decode().rstrip()
    except OSError as missing:
        # Not `{path}: …`: if the path ends in `token`, the redactor would hide what follows the colon.
        raise ValueMissing(f"the file {path} cannot be read: {os.strerror(missing.errno or 0)}") from missing
    except UnicodeDecodeError as broken:
        raise ValueMissing(f"{path} is not UTF-8 text") from broken
