"""The HTTP routes of files: `/view` and `/upload/image`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web
from multidict import CIMultiDict

from tests.fakes.comfyui.png import WEBP

if TYPE_CHECKING:
    from tests.fakes.comfyui.server import FakeComfy


class FileRoutes:
    """HEAD, ranges, ETags and conditions are aiohttp's own, as they are with the real server."""

    def __init__(self, comfy: FakeComfy) -> None:
        self._comfy = comfy

    def add_to(self, app: web.Application) -> None:
        for prefix in ("", "/api"):
            app.router.add_get(prefix + "/view", self.view)
            app.router.add_post(prefix + "/upload/image", self.upload)

    async def view(self, request: web.Request) -> web.StreamResponse:
        """400 for a name that climbs or a folder that there is not, 403 for a subfolder that climbs, else 404."""
        name = request.query.get("filename", "")
        if not name:
            return web.Response(status=404)
        if name.startswith("/") or ".." in name:
            return web.Response(status=400)
        kind = request.query.get("type", "output")
        if (folder := self._comfy.folders.of(kind)) is None:
            return web.Response(status=400)
        subfolder = request.query.get("subfolder", "")
        if self._comfy.folders.inside(kind, subfolder) is None:
            return web.Response(status=403)
        path = folder / subfolder / Path(name).name
        if "\0" in str(path) or len(path.name) > 255 or not path.is_file():
            return web.Response(status=404)
        headers = CIMultiDict({"Content-Disposition": f'filename="{path.name}"'})
        if "preview" in request.query:
            return web.Response(body=WEBP, content_type="image/webp", headers=headers)
        if self._comfy.version.is_new:
            headers["X-Content-Type-Options"] = "nosniff"
        return web.FileResponse(path, headers=headers)

    async def upload(self, request: web.Request) -> web.Response:
        """The name in the answer is the one to use. 413 is aiohttp's, by `max_upload_bytes`."""
        form = await request.post()
        image = form.get("image")
        if not isinstance(image, web.FileField) or not image.filename:
            return web.Response(status=400)
        kind, subfolder = str(form.get("type", "input")), str(form.get("subfolder", ""))
        overwrite = form.get("overwrite") in {"true", "1"}
        data = image.file.read()
        name = self._comfy.folders.upload(image.filename, subfolder, kind, data, overwrite=overwrite)
        if name is None:
            return web.Response(status=400)
        return web.json_response({"name": name, "subfolder": subfolder, "type": kind})
