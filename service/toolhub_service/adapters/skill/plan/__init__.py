"""Plans of skills: steps that call tools, run by the hub."""
