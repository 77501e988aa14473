"""Agent Skills as tools: folders with a SKILL.md, read by agents, and run where a `toolhub.json` says how.

Nothing of a skill is run because it is there: a skill without a sidecar is text that an agent may read.
"""
