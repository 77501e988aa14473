"""ComfyUI: a template (a graph and a sidecar that says what of it is an argument) as a tool, run as a job."""
