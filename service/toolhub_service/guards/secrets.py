"""The redactor that every sink shares: logs, spans, labels, errors, evidence, audit events, job events.

It knows secrets in three ways, in this order: known secret values (in all forms of `secret_spellings`), names that
indicate a secret (`secret_names`), and the form of the text itself (`secret_patterns`). Most text contains no secret,
so one RE2 search for any sign of one comes first and returns in about a microsecond. Redaction is idempotent and never
raises: when in doubt it hides more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import orjson
import re2

from toolhub_service.guards.secret_names import NAME_SIGN, is_secret_name
from toolhub_service.guards.secret_patterns import (
    CURL_SIGN,
    CURL_USER,
    CURL_USER_FLAGS,
    EDGE,
    FAMILIES,
    PRIVATE_KEY,
    PRIVATE_KEY_SIGN,
    QUERY,
    QUERY_SIGN,
    SCHEME,
    SCHEME_SIGN,
    URL_SECOND,
    URL_SIGN,
    URL_USERINFO,
)
from toolhub_service.guards.secret_spellings import known_pattern

Redact: TypeAlias = Callable[[str], str]
"""Returns the text without the secrets that the hub knows or recognises: for users that need only this of the
redactor."""


MARK: Final = "***"
MARK_BYTES: Final = MARK.encode()
_MAX_DEPTH: Final = 200
# Hiding one secret can expose the edge of another; two passes suffice for nearly everything.
_MAX_PASSES: Final = 4

_NAME: Final = (
    r"[A-Za-z0-9_.\-]*(?i:pass|pwd|pw|secret|token|key|auth|bearer|jwt|cookie|cred|sas|otp|psk|sessionid"
    r"|mnemonic|kube[_\-]?config|seed[_\-]?phrase|conn(?:ection)?[_\-]?str)"
    r"[A-Za-z0-9_.\-]*"
)
_NESTED: Final = r"""\{[^{}]*(?:\{[^{}]*\}[^{}]*)*(?:\}|\z)|\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*(?:\]|\z)"""
_VALUE: Final = (
    r"""(?:b?\\+"[^"\\]*(?:\\+"|\z)|b?"(?:[^"\\]|\\.)*(?:"|\\?\z)|b?'(?:[^'\\]|\\.)*(?:'|\\?\z)|"""
    rf"""{_NESTED}|[^\s"'&;<>]+)"""
)
_BETWEEN: Final = r"""(\\*["']?\]?\s*(?:=>|:=|=+|:)\s*|\\*["']\s*,\s*|>)"""
_NAMED: Final = rf"""((?:(?i:api|access|private|secret|auth)[ ])?{_NAME}){_BETWEEN}({_VALUE})"""
_FLAG: Final = rf"""(--?{_NAME})(\s+)({_VALUE})"""
_HEADER: Final = r"""(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(\s*[:=]\s*)((?:[^"'\r\n\\]|\\[^"'])+)"""
_CLOSERS: Final = b",.)}]"
_NOTHING: Final = frozenset({b"null", b"none", b"true", b"false", b"undefined", b"nil", b""})


def _compile(pattern: str | bytes) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = 64 << 20
    options.log_errors = False
    return re2.compile(pattern if isinstance(pattern, bytes) else pattern.encode(), options)


_FAMILIES_RE = _compile(rf"(\\+[bfnrt]|\b)(?:{'|'.join(prefix + rest for prefix, rest in FAMILIES)})")
_PRIVATE_KEY_RE = _compile(PRIVATE_KEY)
_URL_RE = _compile(URL_USERINFO)
_URL_PASSWORD_RE = _compile(URL_SECOND)
_QUERY_RE = _compile(QUERY)
_SCHEME_RE = _compile(SCHEME)
_CURL_RE = _compile(CURL_USER)
_HEADER_RE = _compile(_HEADER)
_NAMED_RE = _compile(_NAMED)
_FLAG_RE = _compile(_FLAG)
# A quote, possibly within nested JSON, or of a `repr` of bytes: `"`, `\"`, `b'`.
_OPENING_RE = _compile(rb"""b?\\*["']""")
_SIGNS: Final = "|".join(
    (
        NAME_SIGN,
        EDGE + "(?:" + "|".join(prefix for prefix, _ in FAMILIES) + ")",
        *(PRIVATE_KEY_SIGN, URL_SIGN, QUERY_SIGN, SCHEME_SIGN, CURL_SIGN),
    )
)


class Redactor:
    """Hides secrets in text and in JSON. Safe to share between threads."""

    def __init__(self, known_secrets: Iterable[str] = ()) -> None:
        self._values: frozenset[str] = frozenset()
        self._known: Any = None
        self._signs = _compile(_SIGNS)
        self.learn(known_secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Hide these values from now on, too; they come from configuration that is read later."""
        values = self._values.union(secrets)
        if values == self._values:
            return
        known = known_pattern(values)
        self._known = _compile(known) if known else None
        self._signs = _compile(b"|".join([part for part in (known, _SIGNS.encode()) if part]))
        self._values = values

    def suspects(self, data: bytes) -> bool:
        """Return whether the bytes show any sign of a secret; False is certain."""
        return self._signs.search(data) is not None

    def text(self, text: str) -> str:
        """Return the text with every secret replaced by `***`."""
        data = text.encode("utf-8", "surrogatepass")
        if self._signs.search(data) is None:
            return text
        for _ in range(_MAX_PASSES):
            before, data = data, self._clean(data)
            if data == before:
                break
        return data.decode("utf-8", "surrogatepass")

    def hide_known_values(self, text: str) -> str:
        """Return the text with only known secret values replaced, by their length."""
        if self._known is None:
            return text
        data = self._known.sub(_length_mark, text.encode("utf-8", "surrogatepass"))
        return bytes(data).decode("utf-8", "surrogatepass")

    def value(self, value: object) -> Any:
        """Return the JSON value with secrets hidden; the same object when there is no sign of one."""
        try:
            if self._signs.search(orjson.dumps(value)) is None:
                return value
        except TypeError:
            pass  # Not plain JSON: redact every part of it.
        return self._redact_value(value, 0)

    def json_text(self, value: object) -> str:
        """Return compact redacted JSON of the value, for summaries."""
        try:
            data = orjson.dumps(value)
            if self._signs.search(data) is None:
                return data.decode()
            return orjson.dumps(self._redact_value(value, 0)).decode()
        except TypeError:
            return self.text(repr(self._redact_value(value, 0)))

    def _clean(self, data: bytes) -> bytes:
        if self._known is not None:
            data = self._known.sub(MARK_BYTES, data)
        data = _PRIVATE_KEY_RE.sub(MARK_BYTES, data)
        data = _URL_RE.sub(_hide_userinfo, data)
        data = _URL_PASSWORD_RE.sub(_hide_url_password, data)
        data = _HEADER_RE.sub(_hide_header, data)
        data = _NAMED_RE.sub(_hide_named, data)
        data = _FLAG_RE.sub(_hide_flag, data)
        data = _CURL_RE.sub(_hide_curl_user, data)
        data = _QUERY_RE.sub(_hide_last, data)
        data = _SCHEME_RE.sub(_hide_scheme, data)
        return bytes(_FAMILIES_RE.sub(_hide_last, data))

    def _redact_value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if depth > _MAX_DEPTH:
            return MARK
        if isinstance(value, Mapping):
            return self._redact_object(value, depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._redact_array(list(value), depth)
        return self.text(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))

    def _redact_object(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        """Redact an object by its names; `{"name": "Authorization", "value": …}` counts as a name too."""
        label = value.get("name", value.get("key"))
        labelled = isinstance(label, str) and is_secret_name(label)
        shown: dict[str, Any] = {}
        for raw_name, item in value.items():
            name = raw_name if isinstance(raw_name, str) else str(raw_name)
            secret = is_secret_name(name) or (labelled and name == "value")
            shown[self.text(name)] = hide_member(name, item) if secret else self._redact_value(item, depth + 1)
        return shown

    def _redact_array(self, items: list[Any], depth: int) -> list[Any]:
        """Redact an array by its items; `["authorization", …]` counts as a name with its value, and so does a flag in
        argv."""
        if len(items) == 2 and isinstance(items[0], str) and is_secret_name(items[0]):
            return [self.text(items[0]), hide_member(items[0], items[1])]
        before = ["", *items]
        return [
            MARK if _flag_announces(flag, item) else self._redact_value(item, depth + 1)
            for flag, item in zip(before, items, strict=False)
        ]


def _length_mark(match: Any) -> bytes:
    length = len(match.group(0).decode("utf-8", "replace"))
    return f"[secret of {length} characters]".encode()


def _flag_announces(flag: Any, item: Any) -> bool:
    """Return whether items are like `["--token", "abc"]` or `["-u", "user:password"]` in an argv."""
    if not (isinstance(flag, str) and isinstance(item, str) and flag.startswith("-")):
        return False
    if flag in CURL_USER_FLAGS:
        return ":" in item
    return "=" not in flag and not item.startswith("-") and is_secret_name(flag)


def hide_member(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool) or value == "":
        return value
    if isinstance(value, int | float) and name.lower().endswith("tokens"):
        return value  # A count, such as max_tokens.
    return MARK


def _hide_userinfo(match: Any) -> Any:
    return match.group(0) if match.group(2) == b"git" else match.group(1) + MARK_BYTES + b"@"


def _hide_url_password(match: Any) -> Any:
    port = match.group(2).split(b"/", 1)[0]
    return match.group(0) if port.isdigit() and len(port) <= 5 else match.group(1) + MARK_BYTES + b"@"


def _hide_header(match: Any) -> bytes:
    value = match.group(3)
    return bytes(match.group(1) + match.group(2) + MARK_BYTES + value[len(value.rstrip()) :])


def _hide_last(match: Any) -> bytes:
    return bytes(match.group(1) + MARK_BYTES)


def _hide_curl_user(match: Any) -> Any:
    """Hide the password in `-u user:password`; `-u user` contains none, because curl asks for it later."""
    return match.group(1) + MARK_BYTES if b":" in match.group(2) else match.group(0)


def _hide_scheme(match: Any) -> bytes:
    """Hide `Bearer abc123…`, but not `basic knowledge` nor `Bearer authentication`."""
    credential = match.group(3)
    if credential.isalpha() and (credential.islower() or credential.istitle()):
        return bytes(match.group(0))
    return bytes(match.group(1) + match.group(2) + MARK_BYTES)


def _hide_named(match: Any) -> bytes:
    name, between, value = match.group(1), match.group(2), match.group(3)
    if b"," in between and not _is_pair(match):
        return bytes(match.group(0))
    if not (is_secret_name(name.decode("latin-1")) or _is_secret_after_escape(match)):
        return bytes(match.group(0))
    return bytes(name + between + _hide_value(name, value))


def _is_pair(match: Any) -> bool:
    """Return whether `"token","abc"` are a name and its value: a whole text, whose successor is no name of an object,
    as in `{"path":"../secret","startLine":null}`."""
    text, start, end = match.string, match.start(), match.end()
    return text[start - 1 : start] in (b'"', b"'") and text[end : end + 32].lstrip()[:1] != b":"


def _is_secret_after_escape(match: Any) -> bool:
    """In JSON text a line break before a name adds one letter to it: `\\npwd=…`."""
    start, name = match.start(), match.group(1)
    is_escaped = start > 0 and match.string[start - 1 : start] == b"\\" and name[:1] in b"bfnrt"
    return is_escaped and is_secret_name(name[1:].decode("latin-1"))


def _hide_flag(match: Any) -> bytes:
    name, between, value = match.group(1), match.group(2), match.group(3)
    if value.startswith(b"-") or not is_secret_name(name.decode("latin-1")):
        return bytes(match.group(0))
    return bytes(name + between + _hide_value(name, value))


def _hide_value(name: bytes, value: bytes) -> bytes:
    """Return the mark in the value's own quotes; an object or an array is hidden as a whole."""
    if value[:1] in (b"{", b"["):
        return MARK_BYTES
    quotes = _OPENING_RE.match(value)
    opening = b"" if quotes is None else bytes(quotes.group(0))
    bare = value[len(opening) :]
    content = bare.rstrip(b"\\\"'") if opening else bare.rstrip(_CLOSERS)
    if content.lower() in _NOTHING or (content.isdigit() and name.lower().endswith(b"tokens")):
        return value
    return opening + MARK_BYTES + bare[len(content) :]
