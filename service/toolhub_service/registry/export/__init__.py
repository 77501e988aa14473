"""Tools in other notations: definitions for models, and stubs for programs."""
