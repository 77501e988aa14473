"""Workflows of ComfyUI as templates: graph, sidecar, arguments, and the checks of them."""
