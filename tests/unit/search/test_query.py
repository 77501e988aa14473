from __future__ import annotations

import pytest

from toolhub_service.search.analyser import Analyser
from toolhub_service.search.query import QueryReader


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
        ("ÄnderungsDatum größeÄndern", ["änderungs", "datum", "größeändern"]),
        ("İstanbulGuide", ["stanbul", "guide"]),
        ("天", ["天"]),
        ("", []),
        ("\u0000 --- !?", []),
    ],
)
def test_words_are_split_and_folded(text: str, words: list[str]) -> None:
    analyser = Analyser()
    for _ in range(2):
        assert [word for word, _ in analyser.entries(text)] == words


def related_of(query: str) -> dict[str, bool]:
    return {word: bool(related) for word, _, _, related in QueryReader(Analyser()).read(query)}


def test_chinese_words_are_split_before_synonyms_apply() -> None:
    assert related_of("读文件夹") == {"读文": False, "文件": False, "件夹": False, "读": True, "文件夹": True}
    assert related_of("文件") == {"文件": True}


def test_terms_are_stems_without_stop_words() -> None:
    assert Analyser().terms("Can you help me with converting currencies?") == ["convert", "currenc"]


def test_different_spellings_of_a_word_are_read_alike() -> None:
    analyser = Analyser()
    for text in ("weatherForecasts", "Weather forecasts", "WEATHER_forecasts", "weather/Forecasts"):
        assert analyser.entries(text) == [("weather", "weather"), ("forecasts", "forecast")]


def test_a_word_is_read_to_a_bound() -> None:
    analyser = Analyser()
    assert analyser.entries("x" * 100) == analyser.entries("X" * 100) == [("x" * 64, "x" * 64)]


def test_the_term_of_a_word_is_that_of_its_entry() -> None:
    analyser = Analyser()
    assert [analyser.term(word) for word, _ in analyser.entries("Weather 天气预报")] == [
        "weather",
        "天气",
        "气预",
        "预报",
    ]
    assert analyser.term("the") == ""
