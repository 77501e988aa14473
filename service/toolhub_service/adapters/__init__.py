"""Adapters: one port, and one adapter for each kind of tool, which executes granted calls. They do not know
each other."""
