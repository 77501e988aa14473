"""Whether a page of the site has the blocks that CommonMark, and so a forge or an editor, sees in its text.

The generator reads another dialect, where a list needs an empty line before it, and so does an item after one that has
several paragraphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser

from markdown_it import MarkdownIt

BLOCKS = {"h1": "heading", "h2": "heading", "h3": "heading", "h4": "heading", "li": "list item", "table": "table"}
BLOCKS |= {"tr": "row of a table", "pre": "code block", "img": "image", "blockquote": "quotation"}
_ADVICE = {"list item": ": put an empty line before a list, and before an item after one of several paragraphs"}


class _Blocks(HTMLParser):
    """Counts the blocks of a page's article, or of a text without one."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in BLOCKS:
            self.seen[BLOCKS[tag]] += 1


def differences(text: str, html: str) -> Iterator[str]:
    """One line for each kind of block that the page has more or fewer of than its text."""
    body = text.partition("\n---\n")[2] if text.startswith("---\n") else text
    expected = _count(MarkdownIt("commonmark").enable("table").render(body))
    article = html.partition("<article")[2].partition("</article>")[0]
    there = _count(article)
    for kind in sorted(expected | there):
        if expected[kind] != there[kind]:
            yield f"{expected[kind]} times {kind} in the text, {there[kind]} times in the site{_ADVICE.get(kind, '')}"


def _count(html: str) -> Counter[str]:
    reader = _Blocks()
    reader.feed(html)
    return reader.seen
