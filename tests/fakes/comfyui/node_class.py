"""A node class: its entry in `/object_info`, and its behaviour."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.fakes.comfyui.png import Picture

Spec = list[Any]
"""`[type or list of choices, options]` of one input."""


class BrokenNode(Exception):
    """A node fails with an exception of this name and these words."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class NodeResult:
    """What a node brought: its outputs by slot, and what it shows (`{key: [items]}`), if anything."""

    outputs: tuple[Any, ...] = ()
    ui: dict[str, list[Any]] | None = None


class NodeContext(Protocol):
    """What a node may use while it runs."""

    def save(self, picture: Picture, prefix: str, kind: str) -> list[dict[str, str]]: ...

    def load(self, name: str) -> Picture: ...

    async def progress(self, value: int, of: int, preview: Picture | None = None) -> None:
        """A step of the node's own; where an interrupt is noticed within it."""


@dataclass
class NodeClass:
    """Mutable, so that a test can change a server under its clients."""

    name: str
    run: Callable[[dict[str, Any], NodeContext], Awaitable[NodeResult]]
    required: dict[str, Spec] = field(default_factory=dict)
    optional: dict[str, Spec] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict)
    returns: tuple[str, ...] = ()
    return_names: tuple[str, ...] | None = None
    is_output: bool = False
    title: str = ""
    new_title: str = ""
    """The display name of the newer version, where it differs."""
    description: str = ""
    category: str = "image"
    module: str = "nodes"
    aliases: list[str] = field(default_factory=list)
    essentials: str | None = None
    output_tooltips: list[str] = field(default_factory=list)
    new_returns: tuple[str, ...] | None = None
    """What the newer version's outputs are, where they differ."""
    new_return_names: tuple[str, ...] | None = None
    seen: Callable[[dict[str, Any], NodeContext], str | None] | None = None
    """VALIDATE_INPUTS: what is wrong with the values, which also replaces the check of choices."""

    def spec_of(self, name: str) -> Spec | None:
        return self.required.get(name) or self.optional.get(name)

    def slots(self, is_new: bool) -> tuple[str, ...]:
        """Types of the outputs."""
        return self.new_returns if is_new and self.new_returns is not None else self.returns

    def info(self, is_new: bool) -> dict[str, Any]:
        """This class in `/object_info`."""
        sections: dict[str, dict[str, Any]] = {
            "required": self.required,
            "optional": self.optional,
            "hidden": self.hidden,
        }
        inputs = {name: section for name, section in sections.items() if section or name == "required"}
        outputs = self.slots(is_new)
        names = self.new_return_names if is_new and self.new_return_names else self.return_names
        described: dict[str, Any] = {
            "input": inputs,
            "input_order": {name: list(section) for name, section in inputs.items()},
            "output": list(outputs),
            "output_is_list": [False] * len(outputs),
            "output_name": list(names or outputs),
            "name": self.name,
            "display_name": (self.new_title if is_new else "") or self.title or self.name,
            "description": self.description,
            "python_module": self.module,
            "category": self.category,
            "output_node": self.is_output,
        }
        if self.output_tooltips:
            described["output_tooltips"] = self.output_tooltips
        if is_new:
            described |= {
                "is_input_list": False,
                "has_intermediate_output": False,
                "search_aliases": list(self.aliases),
            }
            described |= {"essentials_category": self.essentials} if self.essentials else {}
        return described
