"""tool-hub: the one governed door between AI agents and the tools they use."""

__version__ = "0.1.0"
