"""The comments of the contract, as text."""

from __future__ import annotations

from pathlib import Path

CONTRACT = Path(__file__).parents[2] / "proto" / "toolhub" / "v1"


def assert_comment(file: str, sentence: str) -> None:
    """The comments of that file say it, wherever their lines break."""
    comments = " ".join(
        line.strip().removeprefix("//").strip()
        for line in (CONTRACT / f"{file}.proto").read_text().splitlines()
        if line.strip().startswith("//")
    )
    assert sentence in comments
