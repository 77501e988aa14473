"""The lists of locked packages: they can be installed by the oldest Python that is promised, and lack nothing there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.servers import PACKAGES, python_packages

ROOT = Path(__file__).parents[3]
TOOLCHAIN = ROOT / ".ci/toolchain"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
FLOOR = PROJECT["project"]["requires-python"].removeprefix(">=") + ".0"
PYTHONS = (FLOOR, "3.11.2", "3.11.7", "3.12.0", "3.13.0", "3.14.0")


def locked(path: Path) -> dict[str, str]:
    """The version of each package of a list."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.MULTILINE))


def installed(*folders: Path) -> dict[str, Distribution]:
    found = distributions(path=[str(folder) for folder in folders]) if folders else distributions()
    return {canonicalize_name(each.name): each for each in found}


def refusing(packages: Mapping[str, str], there: Mapping[str, Distribution]) -> list[str]:
    """Locked packages that the oldest promised Python may not install, and those that cannot be asked."""
    told = []
    for name, version in packages.items():
        if name not in there or there[name].version != version:
            told.append(f"{name}=={version} is not installed: make setup")
            continue
        wanted = there[name].metadata.json.get("requires_python", "")
        if not SpecifierSet(str(wanted)).contains(FLOOR):
            told.append(f"{name}=={version} needs Python {wanted}")
    return told


def missing(roots: Iterable[str], packages: Mapping[str, str], there: Mapping[str, Distribution]) -> set[str]:
    """What the roots need, with one of the promised Pythons, and the list lacks or has in another version."""
    told: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(root) for root in roots]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name not in packages or not wanted.specifier.contains(packages[name], prereleases=True):
            told.add(str(wanted))
            continue
        for extra in {"", *wanted.extras} - {asked for known, asked in seen if known == name}:
            seen.add((name, extra))
            waiting.extend(needs(there[name], extra))
    return told


def needs(package: Distribution, extra: str) -> Iterator[Requirement]:
    for line in package.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        for python in PYTHONS:
            short = ".".join(python.split(".")[:2])
            environment = {"python_version": short, "python_full_version": python, "extra": extra}
            if marker is None or marker.evaluate(environment):
                yield requirement
                break


def test_the_oldest_promised_python_may_install_every_locked_package() -> None:
    assert refusing(locked(TOOLCHAIN / "dev.txt"), installed()) == []


def test_what_the_hub_runs_with_is_part_of_what_is_tested() -> None:
    dev = locked(TOOLCHAIN / "dev.txt")
    for part in ("runtime.txt", "build.txt"):
        assert locked(TOOLCHAIN / part).items() <= dev.items()


@pytest.mark.parametrize("name", PACKAGES)
def test_the_oldest_promised_python_may_install_the_packages_of_other_clients(name: str) -> None:
    folder = python_packages(name)
    assert refusing(locked(ROOT / f"tests/servers/{name}.txt"), installed(folder)) == []


def test_no_promised_python_lacks_a_package_that_another_one_needs() -> None:
    """Fails where the lists were resolved for a newer Python: redis needs async-timeout before Python 3.11.3 only."""
    project = PROJECT["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    lists = {"dev.txt": set(extras), "runtime.txt": set(re.findall(r"--extra=(\w+)", (ROOT / ".ci/lock").read_text()))}
    development = {"dev.txt": PROJECT["dependency-groups"]["dev"], "runtime.txt": []}
    for path, chosen in lists.items():
        roots = [*project["dependencies"], *development[path], *(each for name in chosen for each in extras[name])]
        assert missing(roots, locked(TOOLCHAIN / path), installed()) == set(), path


def test_a_package_that_wants_a_newer_python_or_is_missing_is_named(tmp_path: Path) -> None:
    for name, version, line in (
        ("newer", "1.0", "Requires-Python: >=3.11.5"),
        ("older", "2.0", "Requires-Dist: backport>=1 ; python_full_version < '3.11.3'"),
        ("chosen", "3.0", "Requires-Dist: part>=4 ; extra == 'fast'"),
    ):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{line}\n")
    there = installed(tmp_path)
    packages = {name: package.version for name, package in there.items()}
    assert refusing(packages, there) == ["newer==1.0 needs Python >=3.11.5"]
    assert refusing({"older": "2.1"}, there) == ["older==2.1 is not installed: make setup"]
    assert missing(["older", "chosen"], packages, there) == {'backport>=1; python_full_version < "3.11.3"'}
    assert missing(["chosen[fast]"], packages, there) == {'part>=4; extra == "fast"'}
    assert missing(["newer>=2"], packages, there) == {"newer>=2"}
