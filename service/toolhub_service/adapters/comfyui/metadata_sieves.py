"""Which kinds of files are freed of what ComfyUI and its nodes write into them: the graph, with all its arguments.

Of films and sounds (MP4, WebM, FLAC, Ogg, MP3) metadata stand in places that other parts count from: they stay, and the
evidence says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from toolhub_service.adapters.comfyui.gif_sieve import GifSieve
from toolhub_service.adapters.comfyui.jpeg_sieve import JpegSieve
from toolhub_service.adapters.comfyui.png_sieve import PngSieve
from toolhub_service.adapters.comfyui.sieve import Sieve
from toolhub_service.adapters.comfyui.webp_sieve import WebpSieve

SIEVES: Final[Mapping[str, Callable[[], Sieve]]] = {
    "image/png": PngSieve,
    "image/jpeg": JpegSieve,
    "image/webp": WebpSieve,
    "image/gif": GifSieve,
}
"""By media type."""
