from __future__ import annotations

import pytest

from toolhub_service.registry.analyser import Analyser


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("readTextFile", ["read", "text", "file"]),
        ("HTTPServer_error.code", ["http", "server", "error", "code"]),
        ("core/fs.sha256", ["core", "fs", "sha256"]),
        ("ＦＵＬＬ width", ["full", "width"]),
        ("天气预报", ["天气", "气预", "预报"]),
        ("查 weather天气", ["查", "weather", "天气"]),
        ("Größe naïve", ["größe", "naïve"]),
        ("", []),
        ("\u0000 --- !?", []),
    ],
)
def test_words_are_split_and_folded(text: str, words: list[str]) -> None:
    assert Analyser().words(text) == words


def test_terms_are_stems_without_stop_words() -> None:
    assert Analyser().terms("Can you help me with converting currencies?") == ["convert", "currenc"]
