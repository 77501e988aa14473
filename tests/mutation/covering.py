"""Which tests can see a change of a file: those that import it themselves, or through what tests share."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
WHOLE_HUB = {
    "domain": ("unit/runtime/jobs/test_run.py", "unit/stores/test_memory_jobs.py"),
    "guards": ("unit/policy/test_snapshot.py", "security/test_path_corpora.py", "security/test_shell_corpora.py"),
    "budget": ("rpc/test_admission.py", "rpc/test_shared_limits.py"),
    "policy": ("rpc/test_approvals.py", "security/test_wire_bindings.py"),
    "runtime": ("rpc/test_approvals.py", "rpc/test_idempotency.py", "rpc/test_artifacts_in_calls.py"),
    "runtime/jobs": ("rpc/test_jobs.py", "rpc/test_job_ends.py"),
    "stores/audit": ("security/test_audit_tampering.py", "security/test_audit_removed.py", "rpc/test_audit.py"),
}
"""By folder of the server: files of other folders that drive it, or the whole hub."""


def near_tests(file: str) -> list[str]:
    """Test files of the same folder that import a file of the server or bear its name, the likeliest first; all of the
    folder where there is none."""
    stem, around = Path(file).stem, _around(file)
    found = [path for path in around if stem in path.stem or _module(file) in _reached(path)] or around
    return _names(sorted(found, key=lambda path: (stem not in path.stem, path)))


def far_tests(file: str) -> list[str]:
    """The rest of its folder, and tests of a whole hub."""
    named = [TESTS / name for name in WHOLE_HUB.get(str(Path(file).parent), ())]
    near = set(near_tests(file))
    return [name for name in _names(dict.fromkeys([*_around(file), *named])) if name not in near]


def _module(file: str) -> str:
    return "toolhub_service." + file.removesuffix(".py").replace("/", ".")


def _around(file: str) -> list[Path]:
    return sorted((TESTS / "unit" / Path(file).parent).glob("test_*.py"))


def _names(paths: Iterable[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@cache
def _reached(path: Path) -> frozenset[str]:
    """Modules of the server that a file imports, itself or through files of the tests that are no test files."""
    found: set[str] = set()
    seen, waiting = {path}, [path]
    conftest = path.with_name("conftest.py")
    if conftest.exists():
        waiting.append(conftest)
    while waiting:
        for module in _imports(waiting.pop()):
            if module.startswith("toolhub_service."):
                found.add(module)
            elif module.startswith("tests."):
                shared = ROOT / (module.replace(".", "/") + ".py")
                if shared.exists() and shared not in seen and shared != TESTS / "hub.py":
                    seen.add(shared)
                    waiting.append(shared)
    return frozenset(found)


@cache
def _imports(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
    return frozenset(names)
