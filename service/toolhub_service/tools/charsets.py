"""The charset of a text from the web: its byte-order mark, the server's declaration, then the page's own.

By the WHATWG standards Encoding (labels, byte-order marks) and HTML (the declaration within a page). Standard library
only, because the process that reads pages has no more.
"""

from __future__ import annotations

import codecs
import re

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
# Codecs of Python that the web does not have, some of which read escapes.
_PYTHONS_OWN = frozenset("unicode-escape raw-unicode-escape utf-7 idna punycode undefined palmos".split())
_UTF_16 = frozenset({"utf-16", "utf-16le", "utf-16be", "utf-16-le", "utf-16-be"})
_PAGES = ("text/html", "application/xhtml+xml", "application/xml", "text/xml")


def charset_of_mark(data: bytes) -> str:
    """Return Python's name of the charset that a byte-order mark names, which overrides all declarations; empty without
    one."""
    return next((name for mark, name in _BOMS if data.startswith(mark)), "")


def charsets_declared_in(data: bytes) -> list[str]:
    """Return the labels that a page of HTML or XML declares of itself."""
    beginning = data[:_PRESCAN_BYTES]
    return [found[1].decode("ascii") for pattern in (_XML, _META) if (found := pattern.search(beginning))]


def charset_of_body(data: bytes, content_type: str) -> str:
    """Return Python's name of the charset of a body; UTF-8 where none is declared, or one that does not exist."""
    media_type, *parameters = content_type.split(";")
    if marked := charset_of_mark(data):
        return marked
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and (declared := canonical(value.strip().strip("\"'"))):
            return declared
    kind = media_type.strip().lower()
    if kind in _PAGES or kind.endswith("+xml") or (not kind and _begins_as_page(data)):
        # A page that could be read this far is not UTF-16, whatever it says (HTML, "prescan a byte stream").
        found = [name for name in map(canonical, charsets_declared_in(data)) if name and name not in _UTF_16]
        return found[0] if found else "utf-8"
    return "utf-8"


def _begins_as_page(data: bytes) -> bool:
    return data[:256].lstrip().lower().startswith((b"<!doctype html", b"<html", b"<?xml"))


def canonical(label: str) -> str:
    """Return Python's name of a charset; empty when it is no charset."""
    name = label.strip().lower()
    name = _LABELS.get(name, name)
    try:
        # Codecs such as `hex` or `zlib` are no charsets: they cannot encode a letter and raise.
        "a".encode(name)
        found = codecs.lookup(name).name
    except (LookupError, ValueError):
        return ""
    return "" if found in _PYTHONS_OWN else name
