"""HTML as text or Markdown, in one pass and without a tree, so that nesting costs nothing and any page can be parsed.

It runs in the worker process, which has the standard library but no hub.
"""

from __future__ import annotations

import codecs
import html
import re
from html.parser import HTMLParser
from urllib.parse import urljoin

from toolhub_service.tools.charsets import canonical, charset_of_mark, charsets_declared_in

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
            self._hidden_by = tag
            self._hidden_depth = 1
            return
        if tag in _BLOCKS:
            self._block(tag)
        elif tag == "br":
            self._parts.append("\n")
        # Links do not nest (HTML §4.5.1): a second <a> ends the first.
        elif tag == "a":
            self._end_link()
            self._target = self.absolute(dict(attrs).get("href") or "")
            self._link_from = len(self._parts)
        elif tag == "base" and (href := dict(attrs).get("href")):
            self._base_url = self.absolute(href) or self._base_url

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
        target = self._target
        self._target = ""
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

    def absolute(self, href: str) -> str:
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


_METAS = re.compile(r"<meta\b[^<>]{0,2000}>", re.IGNORECASE)
_REFRESHES = re.compile(r"http-equiv\s{0,20}=\s{0,20}[\"']?\s{0,20}refresh\b", re.IGNORECASE)
_REFRESH_TO = re.compile(
    r"content\s{0,20}=\s{0,20}[\"']?[\s\d.]{0,20}[;,]\s{0,20}(?:url\s{0,20}=)?\s{0,20}[\"']?([^\"'<>]+)", re.IGNORECASE
)


def refresh_of(page: str, url: str) -> str:
    """Return the absolute address that the page sends its reader to (`<meta http-equiv=refresh>`); empty for none."""
    for found in _METAS.finditer(page[:500_000]):
        target = _REFRESH_TO.search(found[0]) if _REFRESHES.search(found[0]) else None
        if target is not None:
            return PageText(url, markdown=False).absolute(html.unescape(target[1]))
    return ""


def without_tags(page: str) -> str:
    """Return the page with every tag removed, as a last resort."""
    return _BLANK_LINES.sub("\n\n", html.unescape(_ANY_TAG.sub(" ", page))).strip()


# The charset of a page: as the server declares, as the page declares, or as detected.

_DETECTION_BYTES = 64 * 1024


def decode_page(data: bytes, declared: str, *, is_cut: bool) -> tuple[str, str]:
    """Return the text and the charset used. `declared`: that of the Content-Type; empty when there is none.

    `is_cut`: whether the data are truncated, so that the last character may be incomplete.
    """
    if marked := charset_of_mark(data):
        return data.decode(marked, "replace"), marked.removesuffix("-sig")
    names = [canonical(name) for name in (declared, *charsets_declared_in(data)) if name]
    # Non-ASCII text that is valid UTF-8 is UTF-8: a single-byte charset fits any data, even by mistake.
    if not data.isascii() and names and names[0] != "utf-8" and not _is_multibyte(names[0]):
        names.insert(0, "utf-8")
    for name in (*names, *(() if "utf-8" in names else ("utf-8",))):
        text = _strictly(data, name, is_cut=is_cut)
        if text is not None:
            return text, name
    guess = _detect_charset(data[:_DETECTION_BYTES]) or (names[0] if names else "utf-8")
    return data.decode(guess, "replace"), guess


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


def _detect_charset(data: bytes) -> str:
    from charset_normalizer import from_bytes

    best = from_bytes(data).best()
    return canonical(best.encoding) if best is not None else ""
