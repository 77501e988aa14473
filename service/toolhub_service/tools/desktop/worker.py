"""A process that takes one picture of the desktop and ends: a failing X server ends it, and not the hub.

Standard input is JSON: `region` (`full`, or left, top, width, height), `max_pixels`. Standard output is one line of
JSON, then the PNG.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    asked = json.load(sys.stdin)
    answer, picture = take_screenshot(asked)
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + picture)


def take_screenshot(asked: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return the answer (`problem` is empty when there is a picture) and the PNG."""
    import mss
    from mss.exception import ScreenShotError
    from mss.tools import to_png

    try:
        with mss.mss() as screen:
            # The first entry is all monitors together, the others are single ones.
            whole = screen.monitors[0]
            region = _clip_region(asked["region"], whole)
            if region is None:
                return {"problem": "region", "width": whole["width"], "height": whole["height"]}, b""
            if region["width"] * region["height"] > asked["max_pixels"]:
                return {"problem": "size", "width": whole["width"], "height": whole["height"]}, b""
            shot = screen.grab(region)
            return {"problem": "", "width": shot.width, "height": shot.height}, to_png(shot.rgb, shot.size) or b""
    except ScreenShotError:
        return {"problem": "display", "width": 0, "height": 0}, b""


def _clip_region(region: list[int] | None, whole: dict[str, int]) -> dict[str, int] | None:
    """Return the region on the desktop; None when it is not entirely within it."""
    if region is None:
        return whole
    left, top, width, height = region
    if left + width > whole["width"] or top + height > whole["height"]:
        return None
    return {"left": whole["left"] + left, "top": whole["top"] + top, "width": width, "height": height}


if __name__ == "__main__":
    main()
