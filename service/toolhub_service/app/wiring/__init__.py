"""Builds the parts of a hub from its settings, one file a part."""
