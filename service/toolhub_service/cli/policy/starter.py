"""The policy that `toolhub policy init` writes, with comments: starter_policy.yaml in this folder.

Its lines `# Words` are prose; lines `#key` and `#  - entry` are examples that are valid when the `#` is removed.
"""

from __future__ import annotations

from importlib.resources import files


def starter_policy() -> str:
    return (files(__package__) / "starter_policy.yaml").read_text("utf-8")
