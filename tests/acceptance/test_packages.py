"""The wheel with each of its extras, installed from the registry into an empty environment, serves.

At the locked versions; run by `make acceptance-packages`. Some hundred megabytes are downloaded once.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.unit.deploy.test_package import PYPROJECT, ROOT, answer_of_a_hub, run, wheel
from toolhub_service import __version__

__all__ = ["wheel"]
_INSTALL_S = 500.0
# Of each extra, what it is for: imported at the first use, and by nothing before.
_IMPORTS = {
    "otlp": "opentelemetry.exporter.otlp.proto.grpc",
    "betterproto": "toolhub_betterproto.toolhub.v1",
    "redis": "redis",
    "docket": "docket",
    "postgres": "psycopg_pool",
    "s3": "obstore",
    "mcp": "mcp",
    "oidc": "jwt",
    "spiffe": "cryptography",
    "langchain": "langchain_core",
    "comfyui": "websockets",
    "db": "pglast, sqlglot, psycopg",
    "parquet": "pyarrow",
    "web": "trafilatura, readability",
    "browser": "playwright",
    "desktop": "mss",
    "media": "apprise",
    "programs": "pydantic_monty",
}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked versions as constraints: pip wants hashes of all or of none, and a wheel of our own has none."""
    file = tmp_path_factory.mktemp("locked") / "constraints.txt"
    pins = re.findall(
        r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", (ROOT / ".ci/toolchain/dev.txt").read_text(), re.MULTILINE
    )
    file.write_text("".join(f"{name}=={version}\n" for name, version in pins))
    return file


def test_every_extra_is_tried() -> None:
    assert set(_IMPORTS) == set(PYPROJECT["project"]["optional-dependencies"])


@pytest.mark.parametrize("extra", ["", *_IMPORTS])
def test_the_wheel_serves_with_the_extra_in_an_environment_of_its_own(
    extra: str, wheel: Path, locked: Path, tmp_path: Path
) -> None:
    home = tmp_path / "environment"
    run(sys.executable, "-m", "venv", str(home), cwd=tmp_path)
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", str(locked), wanted)
    run(str(home / "bin/python"), *install, cwd=tmp_path, within_s=_INSTALL_S)
    run(str(home / "bin/python"), "-m", "pip", "check", cwd=tmp_path)
    if extra:
        run(str(home / "bin/python"), "-c", f"import {_IMPORTS[extra]}", cwd=tmp_path)
    assert '"ok": true' in answer_of_a_hub(home / "bin", tmp_path)


def test_the_wheel_is_run_by_the_name_of_its_package(wheel: Path, locked: Path, tmp_path: Path) -> None:
    """As `uvx tool-hub` does."""
    home = tmp_path / "uv"
    run(sys.executable, "-m", "venv", str(home), cwd=tmp_path)
    run(str(home / "bin/python"), "-m", "pip", "install", "--quiet", "uv", cwd=tmp_path, within_s=_INSTALL_S)
    started = ("tool", "run", "--from", str(wheel), "--constraints", str(locked), "tool-hub", "--version")
    printed = run(str(home / "bin/uv"), *started, cwd=tmp_path, within_s=_INSTALL_S)
    assert printed == f"toolhub, version {__version__}\n"
