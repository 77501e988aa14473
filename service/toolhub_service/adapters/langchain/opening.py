"""LangChain tools of sources.yaml. The only module of the app that imports LangChain."""

from __future__ import annotations

from dataclasses import replace

from toolhub_service.adapters.definitions import Overrides
from toolhub_service.adapters.langchain.adapter import LangChainAdapter
from toolhub_service.adapters.langchain.kind import LangChainSource
from toolhub_service.adapters.langchain.source import LangChainToolSource
from toolhub_service.adapters.langchain.terms import LangChainTerms, LoadTerms
from toolhub_service.adapters.source_kind import OpenedSource, SourceDeps
from toolhub_service.adapters.source_values import SourceValues
from toolhub_service.schema.compiled import compile_schema


class LangChainOpener:
    """Implements `Opener`."""

    def __init__(self, deps: SourceDeps) -> None:
        self.adapter = LangChainAdapter(redact=deps.redactor.text, tracer=deps.tracer)
        self._deps = deps
        self._hides = deps.hides()

    def endpoint(self, name: str, entry: LangChainSource) -> str:
        return self._terms(name, entry).endpoint

    def open(self, name: str, entry: LangChainSource) -> OpenedSource:
        values = SourceValues(self._deps.redactor)
        values.within(entry.args)
        source = LangChainToolSource(
            replace(self._terms(name, entry), secrets=values.secrets),
            overrides=Overrides(entry.tools),
            check_schema=compile_schema,
            redact=self._deps.redactor.text,
            troubled=self._deps.observer.troubled,
            hides=self._hides,
        )
        self.adapter.put(source)
        return OpenedSource(source)

    def forget(self, name: str) -> None:
        self.adapter.remove(name)

    def _terms(self, name: str, entry: LangChainSource) -> LangChainTerms:
        trusted = self._deps.trusted_namespaces
        return LangChainTerms(
            name,
            LoadTerms(entry.load, entry.args, entry.entry_points, trusted),
            capabilities=entry.capabilities,
            tags=entry.tags,
            timeout_s=entry.timeout_s,
            max_concurrency=entry.max_concurrency,
            inject=entry.inject,
            processes=entry.processes,
        )
