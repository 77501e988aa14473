"""A text-to-image chain in miniature: what has seeds, models, progress of its own and previews.

These classes are in no recording; their inputs are those of the real ones as far as a template can bind them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from tests.fakes.comfyui.classes import pixels
from tests.fakes.comfyui.node_class import NodeClass, NodeContext, NodeResult
from tests.fakes.comfyui.png import Picture

MODELS = ["tiny.safetensors", "other.safetensors"]
SAMPLERS = ["euler", "euler_ancestral", "dpmpp_2m", "ddim"]
SCHEDULERS = ["simple", "karras", "normal"]


@dataclass(frozen=True)
class Token:
    """A model, a conditioning or a latent: something that only flows."""

    what: str
    width: int = 0
    height: int = 0
    batch: int = 1


async def _checkpoint(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    return NodeResult(tuple(Token(f"{part} of {inputs['ckpt_name']}") for part in ("model", "clip", "vae")))


async def _encoded(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    return NodeResult((Token(inputs["text"]),))


async def _latent(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    return NodeResult((Token("latent", inputs["width"], inputs["height"], inputs["batch_size"]),))


async def _sampled(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    latent: Token = inputs["latent_image"]
    color = zlib.crc32(repr((inputs["seed"], inputs["positive"], inputs["model"])).encode()) & 0xFFFFFF
    for step in range(1, inputs["steps"] + 1):
        await context.progress(step, inputs["steps"], Picture(8, 8, color))
    return NodeResult((Token(f"{color:06x}", latent.width, latent.height, latent.batch),))


async def _decoded(inputs: dict[str, Any], context: NodeContext) -> NodeResult:
    latent: Token = inputs["samples"]
    color = int(latent.what, 16) if latent.what != "latent" else 0
    return NodeResult((Picture(latent.width, latent.height, color, latent.batch),))


def diffusion_classes() -> list[NodeClass]:
    """Fresh ones, for a server to own."""
    batch = {"batch_size": ["INT", {"default": 1, "min": 1, "max": 4096}]}
    text: dict[str, list[Any]] = {"text": ["STRING", {"multiline": True, "dynamicPrompts": True}], "clip": ["CLIP"]}
    return [
        NodeClass("KSampler", _sampled, _sampler_inputs(), returns=("LATENT",), output_tooltips=["The latent."]),
        NodeClass(
            "CheckpointLoaderSimple", _checkpoint, {"ckpt_name": [list(MODELS), {}]}, returns=("MODEL", "CLIP", "VAE")
        ),
        NodeClass("CLIPTextEncode", _encoded, text, returns=("CONDITIONING",)),
        NodeClass("EmptyLatentImage", _latent, {"width": pixels(), "height": pixels()} | batch, returns=("LATENT",)),
        NodeClass("VAEDecode", _decoded, {"samples": ["LATENT"], "vae": ["VAE"]}, returns=("IMAGE",)),
    ]


def _sampler_inputs() -> dict[str, list[Any]]:
    return {
        "model": ["MODEL", {}],
        "seed": ["INT", {"default": 0, "min": 0, "max": 2**64 - 1, "control_after_generate": True}],
        "steps": ["INT", {"default": 20, "min": 1, "max": 10000}],
        "cfg": ["FLOAT", {"default": 8.0, "min": 0.0, "max": 100.0, "step": 0.1, "round": 0.01}],
        "sampler_name": [list(SAMPLERS), {}],
        "scheduler": [list(SCHEDULERS), {}],
        "positive": ["CONDITIONING", {}],
        "negative": ["CONDITIONING", {}],
        "latent_image": ["LATENT", {}],
        "denoise": ["FLOAT", {"default": 1.0, "min": 0.0, "max": 1.0, "step": 0.01}],
    }
