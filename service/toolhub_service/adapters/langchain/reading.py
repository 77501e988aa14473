"""Reads one source in a thread: loads what can be loaded, examines it, describes it. The only door to LangChain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import langchain_core
from langchain_core.tools import BaseTool

from toolhub_service.adapters.langchain.bound_tool import BoundTool, bound
from toolhub_service.adapters.langchain.definitions import definitions_of
from toolhub_service.adapters.langchain.loading import Loader, LoadProblem
from toolhub_service.adapters.langchain.terms import LangChainTerms
from toolhub_service.adapters.overrides import Overrides
from toolhub_service.adapters.schema_use import CheckSchema
from toolhub_service.domain.source import Definition
from toolhub_service.guards.masking import Mask

SERVER = f"langchain-core {langchain_core.__version__}"


@dataclass(frozen=True, slots=True)
class Read:
    """What one reading gave."""

    tools: Mapping[str, BoundTool]
    """By their own names."""
    definitions: tuple[Definition, ...]
    left_out: tuple[str, ...]
    """Why tools have no definition, one sentence each."""
    unloaded: tuple[LoadProblem, ...]
    """What could not be loaded."""


class Reader:
    """Of one source. What was loaded and examined once stays as it is."""

    def __init__(self, terms: LangChainTerms, overrides: Overrides, check_schema: CheckSchema) -> None:
        self._terms = terms
        self._overrides = overrides
        self._check_schema = check_schema
        self._loader = Loader(terms.loads)
        self._mask = Mask(terms.secrets)
        self._bound: dict[str, tuple[BaseTool, BoundTool]] = {}

    def read(self) -> Read:
        loaded, unloaded = self._loader.load()
        given = frozenset(self._terms.inject)
        for tool in loaded:
            known = self._bound.get(tool.name)
            if known is None or known[0] is not tool:
                self._bound[tool.name] = tool, self._masked(bound(tool, given))
        tools = {tool.name: self._bound[tool.name][1] for tool in loaded}
        definitions, left_out = definitions_of(tools.values(), self._terms, self._overrides, self._check_schema)
        return Read(tools, definitions, left_out, unloaded)

    def _masked(self, tool: BoundTool) -> BoundTool:
        """Without what the code was given: a toolkit may tell of its database by a URL with a password."""
        contract = replace(tool.contract, schema=dict(self._mask.object(tool.contract.schema)))
        return replace(tool, description=self._mask.text(tool.description), contract=contract)
