"""The contract of tool-hub, generated from proto/toolhub."""
