"""Sections of the configuration that settings and adapters share."""
