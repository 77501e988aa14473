"""HTML as text or Markdown, in one pass and without a tree, so that nesting costs nothing and any page can be parsed.

It runs in the worker process, which has the standard library but no hub.
"""

from __future__ import annotations

import codecs
import html
import re
from html.parser import HTMLParser
from urllib.parse import urljoin

LINKS_MAX = 200
_LINK_TEXT_CHARS = 200
_LINK_URL_CHARS = 2_000
_TITLE_CHARS = 300

_BLOCKS = frozenset(
    "address article aside blockquote body dd details div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 "
    "h6 header hr html li main nav ol p pre section summary table tbody td tfoot th thead tr ul".split()
)
_HIDDEN = frozenset("head iframe math noscript object script select style svg template textarea title".split())
_VOID = frozenset({"br", "hr", "img", "input", "meta", "link", "base", "source", "wbr", "area", "col", "embed"})
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_CELLS = frozenset({"td", "th"})
_SPACES = re.compile(r"[ \t\r\f\v\u00a0]*\n[ \t\r\f\v\u00a0]*|[ \t\r\f\v\u00a0]+")
_BLANK_LINES = re.compile(r"\n{3,}")
_TITLE = re.compile(r"<title[^<>]{0,500}>([^<]{0,2000})", re.IGNORECASE)
# No `<` or `>` within: a page of many `<` takes no longer than one of letters.
_ANY_TAG = re.compile(r"<[^<>]*>")


class PageText(HTMLParser):
    """The visible text and the links. `feed`, `close`, then `text()`."""

    def __init__(self, base_url: str, *, markdown: bool) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[dict[str, str]] = []
        self._base_url = base_url
        self._markdown = markdown
        self._parts: list[str] = []
        self._hidden_by = ""
        self._hidden_depth = 0
        self._pre = 0
        # The open link: its target, and where its text begins.
        self._target = ""
        self._link_from = 0
        self._seen: set[str] = set()

    def text(self) -> str:
        lines = (line.rstrip() for line in "".join(self._parts).split("\n"))
        return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden_by:
            self._hidden_depth += tag == self._hidden_by
            return
        if tag in _HIDDEN and tag not in _VOID:
            self._hidden_by, self._hidden_depth = tag, 1
            return
        if tag in _BLOCKS:
            self._block(tag)
        elif tag == "br":
            self._parts.append("\n")
        # Links do not nest (HTML §4.5.1): a second <a> ends the first.
        elif tag == "a":
            self._end_link()
            self._target = self._absolute(dict(attrs).get("href") or "")
            self._link_from = len(self._parts)
        elif tag == "base" and (href := dict(attrs).get("href")):
            self._base_url = self._absolute(href) or self._base_url

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._hidden_by:
            self._hidden_depth -= tag == self._hidden_by
            # A page that never closes its <script> or <svg> would otherwise stay hidden to its end.
            if self._hidden_depth == 0 or tag in {"head", "body", "html"}:
                self._hidden_by = ""
            return
        if tag == "a":
            self._end_link()
        elif tag == "pre":
            self._pre = max(0, self._pre - 1)
            self._parts.append("\n```\n" if self._markdown else "\n")
        elif tag in _CELLS:
            self._parts.append(" | " if self._markdown else "\t")
        elif tag in _BLOCKS:
            self._parts.append("\n\n" if tag in _HEADINGS or tag == "p" else "\n")

    def handle_data(self, data: str) -> None:
        if self._hidden_by:
            return
        if self._pre:
            self._parts.append(data)
            return
        text = _SPACES.sub(" ", data).replace("\n", " ")
        if text == " " and (not self._parts or self._parts[-1].endswith((" ", "\n"))):
            return
        if self._parts and self._parts[-1].endswith("\n"):
            text = text.lstrip(" ")
        self._parts.append(text)

    def _block(self, tag: str) -> None:
        if tag == "pre":
            self._pre += 1
            self._parts.append("\n```\n" if self._markdown else "\n")
        elif tag == "li":
            self._parts.append("\n- ")
        elif tag in _HEADINGS:
            self._parts.append("\n\n" + (_HEADINGS[tag] if self._markdown else ""))
        elif tag not in _CELLS:
            self._parts.append("\n\n" if tag == "p" else "\n")

    def _end_link(self) -> None:
        """Note the link, and write its target for Markdown."""
        target, self._target = self._target, ""
        if not target:
            return
        shown = "".join(self._parts[self._link_from :])
        text = " ".join(shown.split())[:_LINK_TEXT_CHARS]
        if target not in self._seen and len(self.links) < LINKS_MAX:
            self._seen.add(target)
            self.links.append({"url": target, "text": text})
        # A link around blocks (a card, a list) cannot be written in brackets without breaking both.
        if self._markdown and text and "\n" not in shown.strip():
            self._parts[self._link_from :] = [f"[{text}]({target})"]

    def _absolute(self, href: str) -> str:
        """Return the absolute URL; empty when it is none of the web."""
        if not href or href.startswith("#") or len(href) > _LINK_URL_CHARS:
            return ""
        try:
            url = urljoin(self._base_url, href.strip())
        except ValueError:
            return ""
        return url if url.startswith(("http://", "https://")) and len(url) <= _LINK_URL_CHARS else ""


def title_of(page: str) -> str:
    """Return the text of its `<title>`, at most 300 characters; empty when it has none."""
    # A title is in the head; some heads contain hundreds of kilobytes of styles before it.
    found = _TITLE.search(page[:500_000])
    return " ".join(html.unescape(found[1]).split())[:_TITLE_CHARS] if found else ""


def without_tags(page: str) -> str:
    """Return the page with every tag removed, as a last resort."""
    return _BLANK_LINES.sub("\n\n", html.unescape(_ANY_TAG.sub(" ", page))).strip()


# The charset of a page: as the server declares, as the page declares, or as detected (WHATWG Encoding §4.2 for labels
# that mean a larger charset).

_LABELS = {
    "ascii": "cp1252",
    "us-ascii": "cp1252",
    "iso-8859-1": "cp1252",
    "latin1": "cp1252",
    "latin-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "x-gbk": "gb18030",
    "shift_jis": "cp932",
    "shift-jis": "cp932",
    "sjis": "cp932",
    "x-sjis": "cp932",
    "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949",
    "iso-8859-9": "cp1254",
    "tis-620": "cp874",
    "utf8": "utf-8",
    "x-cp1251": "cp1251",
    "win-1251": "cp1251",
}
_BOMS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_META = re.compile(rb"<meta[^<>]{0,300}?charset\s{0,20}=\s{0,20}[\"']?\s{0,20}([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
_XML = re.compile(rb"^\s{0,100}<\?xml[^<>]{0,100}?encoding\s{0,20}=\s{0,20}[\"']([A-Za-z0-9_:.-]{1,40})")
_PRESCAN_BYTES = 8_192
_DETECTION_BYTES = 64 * 1024


def decoded(data: bytes, declared: str, *, is_cut: bool) -> tuple[str, str]:
    """Return the text and the charset used. `declared`: that of the Content-Type; empty when there is none.

    `is_cut`: whether the data are truncated, so that the last character may be incomplete.
    """
    for mark, name in _BOMS:
        # A byte-order mark overrides the server's declaration (WHATWG Encoding, BOM sniff).
        if data.startswith(mark):
            return data.decode(name, "replace"), name.removesuffix("-sig")
    beginning = data[:_PRESCAN_BYTES]
    declared_within = [found[1].decode("ascii") for pattern in (_XML, _META) if (found := pattern.search(beginning))]
    names = [_canonical(name) for name in (declared, *declared_within) if name]
    # Non-ASCII text that is valid UTF-8 is UTF-8: a single-byte charset fits any data, even by mistake.
    if not data.isascii() and names and names[0] != "utf-8" and not _is_multibyte(names[0]):
        names.insert(0, "utf-8")
    for name in (*names, *(() if "utf-8" in names else ("utf-8",))):
        text = _strictly(data, name, is_cut=is_cut)
        if text is not None:
            return text, name
    guess = _detected(data[:_DETECTION_BYTES]) or (names[0] if names else "utf-8")
    return data.decode(guess, "replace"), guess


def _canonical(label: str) -> str:
    """Return Python's name of a charset; empty when it is no charset."""
    name = label.strip().lower()
    name = _LABELS.get(name, name)
    try:
        # Codecs such as `hex` or `zlib` are no charsets: they cannot decode a letter and raise.
        b"a".decode(name)
    except (LookupError, ValueError):
        return ""
    return name


def _is_multibyte(name: str) -> bool:
    return name.startswith(("gb", "big5", "euc", "cp932", "cp949", "iso-2022", "utf-", "utf_", "hz"))


def _strictly(data: bytes, name: str, *, is_cut: bool) -> str | None:
    """Return the text; None where the charset does not fit."""
    if not name:
        return None
    try:
        # A truncated body may end within a character, which does not indicate another charset.
        return codecs.getincrementaldecoder(name)().decode(data, final=not is_cut)
    except (UnicodeDecodeError, LookupError):
        return None


def _detected(data: bytes) -> str:
    from charset_normalizer import from_bytes

    best = from_bytes(data).best()
    return _canonical(best.encoding) if best is not None else ""
