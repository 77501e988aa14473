"""What the two recorded versions do differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_OLD_FEATURES: dict[str, Any] = {"supports_preview_metadata": True}
_NEW_FEATURES: dict[str, Any] = _OLD_FEATURES | {
    "supports_model_type_tags": True,
    "extension": {"manager": {"supports_v4": True}},
    "node_replacements": True,
    "assets": False,
}
_FRAMES_064 = (("execute", 496), ("get_output_data", 315), ("_async_map_node_over_list", 289), ("process_inputs", 277))
_FRAMES_033 = (("execute", 545), ("get_output_data", 344), ("_async_map_node_over_list", 318), ("process_inputs", 306))
_OLD_MODELS = """checkpoints configs loras vae text_encoders diffusion_models clip_vision style_models embeddings
diffusers vae_approx controlnet gligen upscale_models custom_nodes hypernetworks photomaker classifiers model_patches
audio_encoders""".split()
_NEW_MODELS = """checkpoints configs loras vae text_encoders diffusion_models clip_vision style_models embeddings
diffusers vae_approx controlnet gligen upscale_models latent_upscale_models custom_nodes datasets hypernetworks
photomaker classifiers model_patches audio_encoders background_removal frame_interpolation geometry_estimation
optical_flow detection""".split()
_PACKAGES = {
    "comfyui-frontend-package": ("1.27.10", "1.49.6"),
    "comfyui-workflow-templates": ("0.1.95", "0.11.44"),
    "comfyui-embedded-docs": ("0.2.6", "0.5.10"),
    "comfy-kitchen": ("0.2.31", "0.2.31"),
    "comfy-aimdo": ("0.4.13", "0.4.13"),
}


@dataclass(frozen=True)
class Version:
    """One recorded version; the newer one has everything that is a flag here."""

    name: str
    is_new: bool
    features: dict[str, Any]
    frames: tuple[tuple[str, int], ...]
    """Functions and lines on the way into a node, for tracebacks."""
    model_folders: list[str]

    @property
    def has_jobs(self) -> bool:
        """`/api/jobs…`; the older one answers 404 to GET and 405 to POST."""
        return self.is_new

    @property
    def checks_prompt_ids(self) -> bool:
        """A prompt_id must be a canonical UUID; the older one takes `str()` of anything."""
        return self.is_new

    @property
    def finds_cycles(self) -> bool:
        """Names the nodes of a cycle; the older one says nothing about them."""
        return self.is_new

    @property
    def names_missing_nodes(self) -> bool:
        """`missing_node_type` with the node's title; the older one says `invalid_prompt`."""
        return self.is_new

    @property
    def stamps_create_time(self) -> bool:
        """`create_time` in extra_data, which is also why equal items in the heap can no longer be compared."""
        return self.is_new

    @property
    def hides_keys(self) -> bool:
        """Keys of comfy.org in extra_data are in no answer."""
        return self.is_new

    def system_stats(self, port: int) -> dict[str, Any]:
        """GET /system_stats: the keys of the real one, with quiet figures."""
        system: dict[str, Any] = {
            "os": "linux" if self.is_new else "posix",
            "ram_total": 25_276_514_304,
            "ram_free": 21_956_165_632,
            "comfyui_version": self.name,
            "required_frontend_version": "1.49.6" if self.is_new else "1.27.10",
            "installed_templates_version": "0.1.95",
            "required_templates_version": "0.11.44" if self.is_new else "0.1.95",
            "python_version": "3.11.7 (main) [GCC 12.2.0]",
            "pytorch_version": "2.13.0+cpu",
            "embedded_python": False,
            "argv": ["main.py", "--cpu", "--port", str(port)],
        }
        if self.is_new:
            system["deploy_environment"] = "local-git"
            system["comfy_package_versions"] = [
                {"name": name, "installed": installed, "required": required}
                for name, (installed, required) in _PACKAGES.items()
            ]
        memory = {f"{kind}_{what}": 25_276_514_304 for kind in ("vram", "torch_vram") for what in ("total", "free")}
        return {"system": system, "devices": [{"name": "cpu", "type": "cpu", "index": None, **memory}]}


VERSIONS = {
    "0.3.64": Version("0.3.64", is_new=False, features=_OLD_FEATURES, frames=_FRAMES_064, model_folders=_OLD_MODELS),
    "0.33.0": Version("0.33.0", is_new=True, features=_NEW_FEATURES, frames=_FRAMES_033, model_folders=_NEW_MODELS),
}
