"""Whether a URL may be requested: the one parser and check, for policy (step 4) and for the tool at I/O time.

The checked URL is the one that is dialled: the result contains scheme, host, port and request target, and nothing
parses the URL again. A URL passes when one egress rule matches it whole (host, scheme, port, path, method); the
networks that the matching rules open are passed to the dialler, which checks every resolved address against them.

Path and query are written in the normal form of RFC 3986 §6.2.2: dot segments removed, escapes of unreserved characters
undone, the others in upper case. `%2F` and `%5C` are kept, because many APIs have names with a slash in a segment; a
path that climbs by them (`..%2F`) or by a dot segment with parameters (`..;`) is refused: servers differ.

Sources: RFC 3986, RFC 9110 §4.2; refused besides: userinfo, backslashes, raw control characters, other schemes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, urljoin

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.verdict import EgressRule
from toolhub_service.guards.addresses import Networks, is_allowed
from toolhub_service.guards.hosts import canonical_host

URL_MAX_BYTES = 8 * 1024
DEFAULT_PORTS = {"https": 443, "http": 80}
_SHOWN_HOSTS_MAX = 50
_SHOWN_PATHS_MAX = 20

_URL = re.compile(r"(https?)://([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.IGNORECASE | re.DOTALL)
_AUTHORITY = re.compile(r"(\[[^\]@]*\]|[^:@\[\]]+)(?::([0-9]{0,5}))?", re.ASCII)
_NEVER = re.compile(r"[\x00-\x1f\x7f-\x9f\\\u2028\u2029\ud800-\udfff]")
_TARGET = re.compile(r"[A-Za-z0-9\-._~:/?@!$&'()*+,;=%\[\]]*", re.ASCII)
_TARGET_SAFE = "-._~:/?@!$&'()*+,;=%[]"
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})", re.ASCII)
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# A dot segment that remains after removal: a server may still interpret it.
_CLIMBS = re.compile(r"(?:^|/|%2F|%5C)\.\.?(?:;[^/]*)?(?:/|%2F|%5C|$)")


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """An http(s) URL in the form in which it is compared and sent."""

    scheme: str
    """`http` or `https`."""
    host: str
    """ASCII name in lower case, or a canonical address without brackets."""
    port: int
    """1 to 65535; the scheme's default when the URL names none."""
    target: str
    """Path and query in ASCII and normal form, beginning with `/`, as in the request line."""
    is_address: bool
    """Whether `host` is a literal address."""

    @property
    def authority(self) -> str:
        """Value of the Host header: the port only when it is not the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port (RFC 6454)."""
        return self.scheme, self.host, self.port

    def __str__(self) -> str:
        """The URL without its fragment."""
        return f"{self.scheme}://{self.authority}{self.target}"


@dataclass(frozen=True, slots=True)
class CheckedUrl(ParsedUrl):
    """A URL that egress rules allow. Only `check_url` makes one."""

    networks: Networks
    """Networks that the matching rules open for the host, sorted, without blocked ones."""
    retry_with_key: bool = False
    """Whether a matching rule says that the host honours the header Idempotency-Key."""


def check_url(url: str, method: str, egress: tuple[EgressRule, ...]) -> CheckedUrl:
    """Return the URL as it may be requested with `method`.

    Raises:
        ToolFailure: INVALID_INPUT for an unsupported or malformed URL; HTTP_DISALLOWED_HOST, with what is allowed in
            `details`, when no rule matches it or when it names an address that may not be dialled.
    """
    parsed = parse_url(url)
    named = [rule for rule in egress if _names_host(rule, parsed)]
    if not named:
        raise refuse_host(parsed, egress)
    matching = [rule for rule in named if _fits(rule, parsed, method)]
    if not matching:
        raise refuse_use(parsed, method, named)
    networks = Networks(
        tuple(sorted({cidr for rule in matching for cidr in rule.cidrs})),
        tuple(sorted({cidr for rule in egress for cidr in rule.blocked_cidrs})),
    )
    if parsed.is_address and not is_allowed(parsed.host, networks):
        raise refuse_address(parsed.host)
    return CheckedUrl(
        scheme=parsed.scheme,
        host=parsed.host,
        port=parsed.port,
        target=parsed.target,
        is_address=parsed.is_address,
        networks=networks,
        retry_with_key=any(rule.retry_with_key for rule in matching),
    )


def join_url(origin: ParsedUrl, reference: str) -> str:
    """Return the target of a redirect, which must be checked again. Raises ToolFailure INVALID_INPUT for an invalid
    one."""
    _check_characters(reference)
    try:
        return urljoin(str(origin), reference)
    except ValueError:  # an unclosed bracket
        raise _not_a_url("close the bracket of an IPv6 address") from None


def parse_url(url: str) -> ParsedUrl:
    """Return the parts of an http(s) URL. Raises ToolFailure INVALID_INPUT with what to write instead."""
    _check_characters(url)
    match = _URL.fullmatch(url.strip(" "))
    if match is None:
        raise _not_a_url("begin it with https:// or http:// and a host")
    scheme, authority, path, query = match.group(1).lower(), match.group(2), match.group(3), match.group(4)
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise refuse_authority(authority)
    host = canonical_host(parts.group(1))
    target = canonical_path(path) + (normalise_escapes(query) if query else "")
    return ParsedUrl(scheme, host.name, _port(parts.group(2), scheme), target, host.is_address)


def _check_characters(url: str) -> None:
    if len(url) > URL_MAX_BYTES or (not url.isascii() and len(url.encode("utf-8", "replace")) > URL_MAX_BYTES):
        raise _not_a_url(f"shorten it to {URL_MAX_BYTES} bytes")
    if _NEVER.search(url):
        raise _not_a_url("percent-encode control characters and write / instead of a backslash")


def _port(written: str | None, scheme: str) -> int:
    if not written:
        return DEFAULT_PORTS[scheme]
    port = int(written)
    if not 1 <= port <= 65535:
        raise _not_a_url("the port must be between 1 and 65535")
    return port


def canonical_path(path: str) -> str:
    """Return a path in its normal form (RFC 3986 §6.2.2). Raises ToolFailure INVALID_INPUT where servers would
    differ."""
    path = normalise_escapes(path or "/")
    if "/." in path:
        path = _without_dot_segments(path)
    if "." in path and _CLIMBS.search(path):
        raise _not_a_url("write its path without dot segments, also none next to %2F, %5C or a semicolon")
    return path


def normalise_escapes(text: str) -> str:
    """Return ASCII without unnecessary escapes."""
    if not _TARGET.fullmatch(text):
        text = quote(text, safe=_TARGET_SAFE)
    return _ESCAPE.sub(unescape_unreserved, text) if "%" in text else text


def unescape_unreserved(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16))
    return character if character in _UNRESERVED else escape[0].upper()


def _without_dot_segments(path: str) -> str:
    """Apply RFC 3986 §5.2.4 to a path that begins with a slash."""
    kept: list[str] = []
    *segments, last = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if last == "..":
        del kept[-1:]
    kept.append("" if last in (".", "..") else last)
    return "/" + "/".join(kept)


def _names_host(rule: EgressRule, url: ParsedUrl) -> bool:
    for pattern in rule.hosts:
        if pattern in ("*", url.host):
            return True
        if pattern.startswith("*.") and not url.is_address and url.host.endswith(pattern[1:]):
            return True
    return False


def _fits(rule: EgressRule, url: ParsedUrl, method: str) -> bool:
    ports = rule.ports
    port_fits = url.port in ports if ports else url.port == DEFAULT_PORTS[url.scheme]
    return port_fits and url.scheme in rule.schemes and method in rule.methods and _is_under(rule.paths, url)


def _is_under(prefixes: tuple[str, ...], url: ParsedUrl) -> bool:
    """Return whether the path is one of the prefixes, or continues one after a whole segment."""
    if not prefixes:
        return True
    path = url.target.partition("?")[0]
    return any(path == prefix or path.startswith(prefix.rstrip("/") + "/") for prefix in prefixes)


def refuse_address(host: str) -> ToolFailure:
    """For a host that leads to an address outside the public Internet; the address itself is not shown."""
    return refuse(
        ErrorKind.HTTP_DISALLOWED_HOST,
        f"{host} resolves to a forbidden address (private, local, reserved or a metadata service). Use a public "
        "host, or ask an operator to open that network in the egress policy.",
        host=host,
    )


def refuse_host(url: ParsedUrl, egress: tuple[EgressRule, ...]) -> ToolFailure:
    allowed = sorted({host for rule in egress for host in rule.hosts})[:_SHOWN_HOSTS_MAX]
    what_to_do = f"Use one of: {', '.join(allowed[:10])}" if allowed else "No host is allowed for this call"
    return refuse(
        ErrorKind.HTTP_DISALLOWED_HOST,
        f"The host {url.host} is not allowed. {what_to_do}.",
        host=url.host,
        allowed_hosts=allowed,
    )


def refuse_use(url: ParsedUrl, method: str, named: list[EgressRule]) -> ToolFailure:
    methods = sorted({known for rule in named for known in rule.methods})
    schemes = sorted({scheme for rule in named for scheme in rule.schemes})
    ports = sorted({port for rule in named for port in _ports(rule)})
    paths = sorted({path for rule in named for path in rule.paths or ("/",)})[:_SHOWN_PATHS_MAX]
    return refuse(
        ErrorKind.HTTP_DISALLOWED_HOST,
        f"{method} {url.scheme}://{url.authority} is not allowed there: for this host use one of the methods "
        f"{', '.join(methods)}, schemes {', '.join(schemes)}, ports {', '.join(map(str, ports))} and paths under "
        f"{', '.join(paths)}.",
        host=url.host,
        allowed_hosts=[url.host],
        allowed_methods=methods,
        allowed_schemes=schemes,
        allowed_ports=ports,
        allowed_paths=paths,
    )


def _ports(rule: EgressRule) -> frozenset[int]:
    return rule.ports or frozenset(DEFAULT_PORTS[scheme] for scheme in rule.schemes if scheme in DEFAULT_PORTS)


def refuse_authority(authority: str) -> ToolFailure:
    if "@" in authority:
        return _not_a_url("leave out user name and password; send credentials as a header")
    return _not_a_url("after the scheme write a host and, if needed, a port, such as https://api.example.com:8443/")


def _not_a_url(what_to_do: str) -> ToolFailure:
    return refuse(ErrorKind.INVALID_INPUT, f"The URL is invalid: {what_to_do}.")
