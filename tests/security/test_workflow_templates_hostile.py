"""Templates from strangers' repositories: one that means harm is left out by itself, told in words of the hub's own,
and the others are read; what a server hands back for one is judged by its bytes."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.adapters.comfyui.template_files import SIDECAR, made, problems, property_of, sidecar, write
from toolhub_service.adapters.comfyui.files.media_types import choose_media_type
from toolhub_service.adapters.comfyui.files.metadata import PARTS_MAX, SIGNATURE, DamagedImage, PngFilter, filter_chunks
from toolhub_service.adapters.comfyui.workflow.loading import load_templates
from toolhub_service.adapters.comfyui.workflow.strict_files import YAML_MAX_BYTES, read_value
from toolhub_service.adapters.comfyui.workflow.template import TemplateInvalid
from toolhub_service.schema.compiled import compile_schema


class TestFilesOfAFolder:
    @pytest.mark.parametrize(
        "text",
        [
            "tool: &a [x]\nb: [*a, *a]",
            "a: !!python/object/apply:os.system [id]",
            "a: !!bool maybe",
            "a: !!timestamp never",
            "a: !!binary '%'",
            "a: !!omap [b: 1]",
            "a: !own x",
            "a: 1" + ":1" * 60_000,
            "a: 0x" + "f" * 100_000,
            "a: " + "[" * 20_000,
            "? [a]\n: b",
            "<<: {tool: x}",
            "a: .nan",
            'a: "\\ud800"',
            "a: 1\n---\nb: 2",
            "\x00",
            "",
        ],
        ids=lambda text: text[:20],
    )
    def test_a_hostile_file_affects_no_other(self, tmp_path: Path, text: str) -> None:
        write(tmp_path)
        (tmp_path / "evil.yaml").write_text(text)
        found, problems_found = load_templates([str(tmp_path)])
        assert [template.name for template in found] == ["scale_image"]
        assert problems_found
        assert all(problem.startswith(str(tmp_path / "evil.yaml")) for problem in problems_found)

    def test_a_large_file_is_not_read_to_its_end(self, tmp_path: Path) -> None:
        write(tmp_path)
        (tmp_path / "evil.yaml").write_text("a: " + "x" * YAML_MAX_BYTES)
        found, (problem,) = load_templates([str(tmp_path)])
        assert len(found) == 1
        assert f"more than {YAML_MAX_BYTES:,} bytes" in problem

    def test_a_path_that_is_no_file_is_not_opened(self, tmp_path: Path) -> None:
        """Reading a pipe would wait for ever, reading a device without end."""
        write(tmp_path)
        os.mkfifo(tmp_path / "pipe.yaml")
        (tmp_path / "zero.yaml").symlink_to("/dev/zero")
        (tmp_path / "gone.yaml").symlink_to("nowhere")
        (tmp_path / "circle.yaml").symlink_to("circle.yaml")
        found, problems_found = load_templates([str(tmp_path)])
        assert (len(found), problems_found) == (1, [])
        for name in ("pipe.yaml", "zero.yaml", "circle.yaml"):
            with pytest.raises(TemplateInvalid):
                read_value(tmp_path / name, max_bytes=100, max_depth=8)

    @pytest.mark.parametrize("graph", ["/dev/zero", "/dev/stdin", "../pipe", ".", "/proc/self/mem", "x" * 1_000])
    def test_a_graph_is_a_file_of_its_own(self, tmp_path: Path, graph: str) -> None:
        os.mkfifo(tmp_path.parent / "pipe")
        try:
            problems_found = problems(tmp_path, workflow={"file": graph})
        finally:
            (tmp_path.parent / "pipe").unlink()
        assert problems_found[0].startswith("workflow.file: ")

    def test_a_foreign_file_named_as_the_graph_shows_no_value(self, tmp_path: Path) -> None:
        (tmp_path / "credentials.json").write_text(
            '{"users": {"name": "ops", "token": "s3cret-token"}, "password": "s3cret"}'
        )
        assert "s3cret" not in "\n".join(problems(tmp_path, workflow={"file": "credentials.json"}))


class TestHostileTemplates:
    @pytest.mark.parametrize("prefix", ["../x", "/abs", "a/../../b", "a\\..\\b", "\\\\host\\x", "a\u202eb", "a\nb"])
    def test_prefixes_that_lead_out_of_the_output_folder_are_refused(self, tmp_path: Path, prefix: str) -> None:
        (problem,) = problems(tmp_path, forced=[{"to": "/3/inputs/filename_prefix", "value": prefix}])
        assert "must stay below" in problem

    @pytest.mark.parametrize("name", ["__proto__", "constructor", "a\u200bb", " a", "..", "a\nb", "x" * 65, "api_key"])
    def test_names_of_arguments_that_mean_something_else_are_refused(self, tmp_path: Path, name: str) -> None:
        binding = {"from": f"/{name}", "to": "/4/inputs/text", "expect_class": "Noise"}
        problems_found = problems(
            tmp_path, input_schema=property_of(name, type="string"), bindings=[*SIDECAR["bindings"], binding]
        )
        assert problems_found

    def test_a_pattern_that_would_backtrack_is_matched_in_linear_time_or_refused(self, tmp_path: Path) -> None:
        schema = property_of("method", type="string", pattern="^(a+)+$")
        assert not compile_schema(made(tmp_path, input_schema=schema).input_schema).is_valid(
            {"image": "x", "width": 1, "method": "a" * 50_000 + "!"}
        )
        assert (
            "not linear" in problems(tmp_path, input_schema=property_of("method", type="string", pattern="(?=a)b"))[0]
        )

    @pytest.mark.parametrize("ref", ["https://example.com/schema.json", "file:///etc/passwd", "#/properties/method"])
    def test_a_schema_is_looked_up_nowhere(self, tmp_path: Path, ref: str) -> None:
        assert problems(tmp_path, input_schema=property_of("method", **{"$ref": ref}))

    def test_an_endlessly_nested_template_is_refused(self, tmp_path: Path) -> None:
        schema: dict[str, Any] = {"type": "string"}
        for _ in range(200):
            schema = {"anyOf": [schema]}
        assert problems(tmp_path, input_schema=property_of("method", **schema))

    def test_an_open_sidecar_lets_no_argument_reach_a_node(self, tmp_path: Path) -> None:
        """`additionalProperties: true` means ignored, whatever the names."""
        template = made(tmp_path, input_schema={**sidecar()["input_schema"], "additionalProperties": True})
        assert {binding.source for binding in template.bindings} == {"/image", "/width", "/height", "/method"}


def _chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


SHAPE, END = _chunk(b"IHDR", b"\0\0\0\1\0\0\0\1\x08\0\0\0\0"), _chunk(b"IEND")
PIXELS = _chunk(b"IDAT", zlib.compress(b"\0\0"))
PICTURE = SIGNATURE + SHAPE + PIXELS + END


async def passed(data: bytes, step: int = 1 << 16) -> bytes:
    async def arriving() -> AsyncIterator[bytes]:
        for at in range(0, len(data), step):
            yield data[at : at + step]

    return b"".join([piece async for piece in filter_chunks(arriving(), PngFilter())])


class TestPictures:
    @pytest.mark.parametrize("step", [1, 3, 7, 13, 1 << 16])
    async def test_only_chunks_that_draw_the_picture_pass(self, step: int) -> None:
        hidden = [_chunk(kind, b"prompt\0{...}") for kind in (b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"teSt", b"vpAg")]
        bomb = _chunk(b"zTXt", b"prompt\0\0" + zlib.compress(b"x" * 5_000_000))
        assert await passed(SIGNATURE + SHAPE + b"".join(hidden) + bomb + PIXELS + END, step) == PICTURE

    @pytest.mark.parametrize(
        "data",
        [
            PICTURE + b"PK\x03\x04 an archive behind it",
            PICTURE[:-1],
            PICTURE.replace(b"\x08\0\0\0\0", b"\x08\0\0\0\1"),
            SIGNATURE + SHAPE + struct.pack(">I", 2**32 - 1) + b"IDAT" + b"x" * 100,
            SIGNATURE[:4],
            b"",
            SIGNATURE,
            SIGNATURE + _chunk(b"IDAT") * (PARTS_MAX + 1) + END,
        ],
        ids=["archive", "cut", "crc", "endless", "no signature", "nothing", "no end", "more chunks than pixels"],
    )
    async def test_a_broken_picture_is_refused(self, data: bytes) -> None:
        with pytest.raises(DamagedImage):
            await passed(data)

    @pytest.mark.parametrize(
        "data",
        [
            b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'>",
            b"\xef\xbb\xbf \n<!DOCTYPE HTML><script>",
            b"<?xml version='1.0'?><svg/>",
            b"GIF89a/*<script>*/",
            b"PK\x03\x04",
            b"MZ\x90\0",
            b"",
        ],
    )
    def test_a_file_that_only_claims_to_be_a_picture_is_not_kept_as_one(self, data: bytes) -> None:
        assert choose_media_type(data, ("image/png", "image/jpeg")) == ""
        assert choose_media_type(data, ()) != "text/html"
