"""Agent Skills as tools: folders with a SKILL.md, read by agents, and run where a `toolhub.json` says how.

A skill without a sidecar is never run: it is text that an agent may read.
"""
