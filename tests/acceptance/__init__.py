"""The adapters against the real servers. Not part of `make test`: `make acceptance-n8n`, `make acceptance-comfyui`."""
