"""What foreign code says of itself, at a size and in a form that can be kept."""

from __future__ import annotations


def shortened(text: str, max_bytes: int) -> str:
    """The beginning of the text, at most so many bytes of UTF-8; what is not Unicode is replaced."""
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")


def one_line(text: str, max_chars: int) -> str:
    """Untrusted text for a sentence: printable, on one line, cut."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * max_chars]).split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"
