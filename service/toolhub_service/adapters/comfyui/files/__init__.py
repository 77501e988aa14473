"""Output files of ComfyUI: fetched, identified, and stored as artifacts."""
