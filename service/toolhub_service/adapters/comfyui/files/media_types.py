"""Media types by the first bytes (WHATWG MIME Sniffing, and the signatures of what ComfyUI writes besides).

A server's file names are not trusted: HTML under an image's name is a well-known attack.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

SNIFFED_BYTES: Final = 512
_BEGINNINGS: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"glTF", "model/gltf-binary"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"MZ", "application/x-msdownload"),
    (b"\x7fELF", "application/x-executable"),
)
_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}
_BRANDS: Final = {b"avif": "image/avif", b"avis": "image/avif", b"heic": "image/heic", b"M4A ": "audio/mp4"}
_HTML: Final = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script", b"<iframe", b"<svg", b"<?xml", b"<!--")
HTML: Final = "text/html"
_EXTENSIONS: Final = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/avif": "avif",
    "video/webm": "webm",
    "video/mp4": "mp4",
    "audio/flac": "flac",
    "audio/ogg": "ogg",
    "audio/mpeg": "mp3",
    "audio/mp4": "m4a",
    "audio/wav": "wav",
    "model/gltf-binary": "glb",
}


def media_type_of(beginning: bytes) -> str:
    """Return the media type that the first `SNIFFED_BYTES` bytes show; empty when they show none."""
    for signature, media_type in _BEGINNINGS:
        if beginning.startswith(signature):
            return media_type
    if beginning[:4] == b"RIFF":
        return _RIFF.get(beginning[8:12], "")
    if beginning[4:8] == b"ftyp":
        return _BRANDS.get(beginning[8:12], "video/mp4")
    return HTML if beginning.lstrip(b"\xef\xbb\xbf \t\r\n\f").lower().startswith(_HTML) else ""


def choose_media_type(beginning: bytes, wanted: Sequence[str]) -> str:
    """Return the media type to store these bytes with; empty when they are none of `wanted` (any, when it is empty).

    Types without a signature, such as text, are accepted as declared by the operator.
    """
    found = media_type_of(beginning)
    if found == HTML:
        return ""
    if found:
        return found if not wanted or any(fnmatchcase(found, each) for each in wanted) else ""
    if not wanted:
        return "application/octet-stream"
    return next((each for each in wanted if not _is_recognizable(each)), "")


def extension_of(media_type: str) -> str:
    """Return the file extension of a media type; empty for one that no node loads."""
    return _EXTENSIONS.get(media_type, "")


def _is_recognizable(media_type: str) -> bool:
    """Return whether bytes of that type would be recognized."""
    known = {shown for _, shown in _BEGINNINGS} | {*_RIFF.values(), *_BRANDS.values(), "video/mp4"}
    return "*" in media_type or media_type in known
