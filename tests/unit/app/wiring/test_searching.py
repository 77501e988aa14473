"""Which embedder a configuration selects, and how one that cannot be loaded is reported."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.hub import settings_of
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.wiring.deps import Deps, SystemClock, SystemRandomness, make_ladder
from toolhub_service.app.wiring.stores import make_stores
from toolhub_service.app.wiring.telemetry import open_observing
from toolhub_service.app.wiring.tools import Searching, make_searching
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.guards.secrets import Redactor
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.sandbox.script_python import ScriptPython
from toolhub_service.schema.compiled import compile_schema


class FakeEmbedder:
    dimension = 4


def _raises() -> FakeEmbedder:
    raise RuntimeError("the model at /secret/place is broken")


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("acme_embedding")
    module.made, module.Made, module.none, module.raises = FakeEmbedder(), FakeEmbedder, object(), _raises
    monkeypatch.setitem(sys.modules, "acme_embedding", module)


def searching(folder: Path, embedder: str = "", trusted: tuple[str, ...] = ("acme_embedding",)) -> Searching:
    search = {"embedder": embedder, "learn": False}
    settings = settings_of(
        folder, {"stores": {"kind": "memory"}, "search": search, "tools": {"trusted_namespaces": trusted}}
    )
    paths, observing = Paths(settings), open_observing(settings, Redactor(), is_worker=True)
    ladder = make_ladder(settings)
    deps = Deps(
        settings=settings,
        paths=paths,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        redactor=Redactor(),
        observing=observing,
        ladder=ladder,
        script_python=ScriptPython(ladder),
    )
    return make_searching(deps, ToolCatalog(check_schema=compile_schema), make_stores(deps))


@pytest.mark.parametrize("path", ["acme_embedding:made", "acme_embedding:Made"])
def test_embedder_is_an_object_or_what_makes_one(tmp_path: Path, code: None, path: str) -> None:
    assert searching(tmp_path, path).meanings is not None


def test_search_goes_by_words_where_no_embedder_is_named_and_learns_nothing_where_it_may_not(tmp_path: Path) -> None:
    found = searching(tmp_path)
    assert (found.meanings, found.learning) == (None, None)


@pytest.mark.parametrize(
    ("path", "trusted", "why"),
    [
        ("acme_embedding:made", ("acme_other",), "its module is not in tools.trusted_namespaces"),
        ("acme_embedding:nothing", ("acme_embedding",), "it could not be loaded: AttributeError"),
        ("acme_embedding.missing:it", ("acme_embedding",), "it could not be loaded: ModuleNotFoundError"),
        ("acme_embedding:raises", ("acme_embedding",), "it could not be loaded: RuntimeError"),
        ("acme_embedding:none", ("acme_embedding",), "it has no `dimension`"),
    ],
)
def test_embedder_that_cannot_be_had_is_reported_in_the_hubs_own_words(
    tmp_path: Path, code: None, path: str, trusted: tuple[str, ...], why: str
) -> None:
    with pytest.raises(HubFailure) as refused:
        searching(tmp_path, path, trusted)
    assert refused.value.reason.name == "EMBEDDER_UNUSABLE"
    assert refused.value.message == f"search.embedder {path}: {why}."
