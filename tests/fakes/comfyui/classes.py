"""The image classes of the recordings, in miniature: pictures of one colour instead of tensors."""

from __future__ import annotations

from typing import Any

from tests.fakes.comfyui.node_class import NodeClass, NodeContext, NodeResult
from tests.fakes.comfyui.png import Picture

MEMORY_BYTES = 1 << 36
OUT_OF_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "{} bytes. Error code 12 (Cannot allocate memory)\n"
)
OUT_OF_DISK = "[Errno 28] No space left on device"


def pixels(default: int = 512, least: int = 1) -> list[Any]:
    """The spec of a size."""
    return ["INT", {"default": default, "min": least, "max": 16384, "step": 1}]


def picture(value: Any) -> Picture:
    """Raises: TypeError with torch's words when a literal was given where a picture belongs."""
    if not isinstance(value, Picture):
        raise TypeError(f"'{type(value).__name__}' object is not subscriptable")
    return value


async def _empty(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    made = Picture(inputs["width"], inputs["height"], inputs["color"], inputs["batch_size"])
    needed = made.width * made.height * made.batch * 4
    if needed > MEMORY_BYTES:
        raise RuntimeError(OUT_OF_MEMORY.format(needed))
    return NodeResult((made,))


async def _unchanged(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    return NodeResult((picture(inputs["image"]),))


async def _scaled(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    given = picture(inputs["image"])
    return NodeResult((Picture(inputs["width"], inputs["height"], given.color, given.batch),))


async def _inverted(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    given = picture(inputs["image"])
    return NodeResult((Picture(given.width, given.height, 0xFFFFFF - given.color, given.batch),))


async def _loaded(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    given = context.load(inputs["image"])
    return NodeResult((given, "MASK"))


async def _saved(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    given = picture(inputs["images"])
    return NodeResult((given,), {"images": context.save(given, inputs["filename_prefix"], "output")})


async def _previewed(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    given = picture(inputs["images"])
    return NodeResult((given,), {"images": context.save(given, "ComfyUI", "temp")})


async def _shown(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    text = inputs["source"] if isinstance(inputs["source"], str) else repr(inputs["source"])
    return NodeResult((text,), {"text": [text]})


def _exists(inputs: dict[str, Any], context: NodeContext) -> str | None:
    try:
        context.load(str(inputs.get("image")))
    except OSError:
        return f"Invalid image file: {inputs.get('image')}"
    except ValueError:
        return None
    return None


_METHODS = ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"]
_PREFIX = (
    "The prefix for the file to save. This may include formatting information such as %date:yyyy-MM-dd% or "
    "%Empty Latent Image.width% to include values from nodes."
)
_HIDDEN = {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"}


def image_classes() -> list[NodeClass]:
    """Fresh ones, for a server to own."""
    return [*_sources(), *_filters(), *_sinks()]


def _sources() -> list[NodeClass]:
    color = ["INT", {"default": 0, "min": 0, "max": 16777215, "step": 1, "display": "color"}]
    sizes = {"width": pixels(), "height": pixels()}
    batch = {"batch_size": ["INT", {"default": 1, "min": 1, "max": 4096}], "color": color}
    loads = """load image;open image;import image;image input;upload image;read image;image loader""".split(";")
    return [
        NodeClass("EmptyImage", _empty, sizes | batch, returns=("IMAGE",), new_title="Empty Image"),
        NodeClass(
            "LoadImage",
            _loaded,
            {"image": [[], {"image_upload": True}]},
            returns=("IMAGE", "MASK"),
            title="Load Image",
            aliases=loads,
            essentials="Basics",
            seen=_exists,
        ),
    ]


def _filters() -> list[NodeClass]:
    scales = ["resize", "resize image", "scale image", "image resize", "zoom", "zoom in", "change size"]
    image: dict[str, list[Any]] = {"image": ["IMAGE"]}
    sigma = {"default": 1.0, "min": 0.1, "max": 10.0, "step": 0.1}
    return [
        NodeClass(
            "ImageScale",
            _scaled,
            image
            | {"upscale_method": [list(_METHODS)], "width": pixels(least=0), "height": pixels(least=0)}
            | {"crop": [["disabled", "center"]]},
            returns=("IMAGE",),
            title="Upscale Image",
            category="image/upscaling",
            aliases=scales,
            essentials="Image Tools",
        ),
        NodeClass(
            "ImageBlur",
            _unchanged,
            image | {"blur_radius": ["INT", {"default": 1, "min": 1, "max": 31, "step": 1}], "sigma": ["FLOAT", sigma]},
            returns=("IMAGE",),
            category="image/postprocessing",
            module="comfy_extras.nodes_post_processing",
        ),
        NodeClass("ImageInvert", _inverted, dict(image), returns=("IMAGE",), title="Invert Image"),
    ]


def _sinks() -> list[NodeClass]:
    saves = ["save", "save image", "export image", "output image", "write image", "download"]
    return [
        NodeClass(
            "SaveImage",
            _saved,
            {
                "images": ["IMAGE", {"tooltip": "The images to save."}],
                "filename_prefix": ["STRING", {"default": "ComfyUI", "tooltip": _PREFIX}],
            },
            hidden=dict(_HIDDEN),
            is_output=True,
            title="Save Image",
            description="Saves the input images to your ComfyUI output directory.",
            aliases=saves,
            essentials="Basics",
            new_returns=("IMAGE",),
            new_return_names=("images",),
        ),
        NodeClass(
            "PreviewImage",
            _previewed,
            {"images": ["IMAGE"]},
            hidden=dict(_HIDDEN),
            is_output=True,
            title="Preview Image",
            description="Saves the input images to your ComfyUI output directory.",
            new_returns=("IMAGE",),
            new_return_names=("images",),
        ),
        NodeClass(
            "PreviewAny",
            _shown,
            {"source": ["*", {}]},
            is_output=True,
            title="Preview Any",
            category="utils",
            module="comfy_extras.nodes_preview_any",
            returns=("STRING",),
        ),
    ]
