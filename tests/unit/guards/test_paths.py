from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub_service.domain.errors import ErrorKind, ToolFailure
from toolhub_service.guards.paths import DEPTH, NAME_BYTES, PATH_BYTES, judge_path


def kind_of(path: str) -> ErrorKind:
    with pytest.raises(ToolFailure) as refused:
        judge_path(path)
    assert refused.value.error.message.endswith((".", "/"))
    return refused.value.error.kind


@pytest.mark.parametrize(
    ("path", "judged"),
    [
        ("a", "a"),
        ("a/b.txt", "a/b.txt"),
        (".", "."),
        ("./", "."),
        ("./a//b/./c/", "a/b/c"),
        ("a/../b", "b"),
        ("a/b/../../c", "c"),
        ("a/..", "."),
        ("...", "..."),
        ("..a/b..", "..a/b.."),
        ("~/x", "~/x"),
        ("日本語/ファイル", "日本語/ファイル"),
        ("%2e%2e/etc", "%2e%2e/etc"),
        ("a b", "a b"),
        ("-rf", "-rf"),
    ],
)
def test_a_path_is_told_in_its_one_spelling(path: str, judged: str) -> None:
    assert judge_path(path) == judged
    assert judge_path(judged) == judged


@pytest.mark.parametrize(
    "path", ["/", "/etc/passwd", "//x", "..", "../x", "a/../..", "a/../../b", "./..", "C:\\x", "c:/x", "a/b/../../../c"]
)
def test_a_path_that_leaves_the_workspace_is_refused(path: str) -> None:
    assert kind_of(path) is ErrorKind.PATH_OUTSIDE_SANDBOX


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a\0b",
        "a\nb",
        "a\x1fb",
        "a\x7fb",
        "a\x85b",
        "a\u2028b",
        "a\u202egpj.exe",
        "a\ud800b",
        "\udcff",
        "a\\b",
        "..\\x",
    ],
)
def test_a_path_that_cannot_name_a_file_is_refused(path: str) -> None:
    assert kind_of(path) is ErrorKind.INVALID_INPUT


def test_lengths_are_counted_in_bytes() -> None:
    assert judge_path("é" * (NAME_BYTES // 2))
    assert kind_of("é" * (NAME_BYTES // 2 + 1)) is ErrorKind.INVALID_INPUT
    assert judge_path("a" * NAME_BYTES)
    assert kind_of("a" * (NAME_BYTES + 1)) is ErrorKind.INVALID_INPUT
    long = "/".join(["é" * 100] * 20)
    assert judge_path(long)
    assert kind_of("/".join(["é" * 100] * 21)) is ErrorKind.INVALID_INPUT
    assert len(long.encode()) <= PATH_BYTES


def test_depth_is_bounded() -> None:
    assert judge_path("/".join("a" * DEPTH))
    assert kind_of("/".join("a" * (DEPTH + 1))) is ErrorKind.INVALID_INPUT


@given(st.text(alphabet=st.sampled_from("./\\ab\0é\ud800%"), max_size=30))
def test_what_is_accepted_never_climbs_and_is_stable(path: str) -> None:
    try:
        judged = judge_path(path)
    except ToolFailure:
        assert kind_of(path) in {ErrorKind.PATH_OUTSIDE_SANDBOX, ErrorKind.INVALID_INPUT}
        return
    assert judged == "." or all(part not in {"", ".", ".."} for part in judged.split("/"))
    assert judge_path(judged) == judged
