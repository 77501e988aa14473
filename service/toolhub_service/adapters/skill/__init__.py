"""Agent Skills as tools."""
