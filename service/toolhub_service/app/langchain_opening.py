"""LangChain tools of sources.yaml. The only module of the app that imports LangChain."""

from __future__ import annotations

from dataclasses import replace

from toolhub_service.adapters.langchain.adapter import LangChainAdapter
from toolhub_service.adapters.langchain.source import LangChainToolSource
from toolhub_service.adapters.langchain.terms import LangChainTerms, LoadTerms
from toolhub_service.adapters.overrides import Overrides
from toolhub_service.app.means import Means
from toolhub_service.app.source_opening import OpenedSource
from toolhub_service.app.source_values import SourceValues
from toolhub_service.app.toolbox import bubblewrap_of
from toolhub_service.domain.source_ports import SourceObserver
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.settings.sources import LangChainSource
from toolhub_service.tools.confinement import Confinement
from toolhub_service.tools.hidden_folder import HiddenFolder


class LangChainOpener:
    """Implements `Opener`."""

    def __init__(self, means: Means, observer: SourceObserver) -> None:
        self.adapter = LangChainAdapter(redact=means.redactor.text, tracer=means.observing.tracing.tracer)
        self._means = means
        bubblewrap = Confinement(bubblewrap_of(means.settings.tools.bubblewrap)).bubblewrap
        data = str(means.paths.data_dir.resolve())
        self._hides = None if means.settings.tools.unconfined_workers else HiddenFolder(data, bubblewrap)
        self._observer = observer

    def endpoint(self, name: str, entry: LangChainSource) -> str:
        return self._terms(name, entry).endpoint

    def open(self, name: str, entry: LangChainSource) -> OpenedSource:
        values = SourceValues(self._means.redactor)
        values.within(entry.args)
        source = LangChainToolSource(
            replace(self._terms(name, entry), secrets=values.secrets),
            overrides=Overrides(entry.tools),
            check_schema=compile_schema,
            redact=self._means.redactor.text,
            troubled=self._observer.troubled,
            hides=self._hides,
        )
        self.adapter.put(source)
        return OpenedSource(source)

    def forget(self, name: str) -> None:
        self.adapter.remove(name)

    def _terms(self, name: str, entry: LangChainSource) -> LangChainTerms:
        trusted = self._means.settings.tools.trusted_namespaces
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
