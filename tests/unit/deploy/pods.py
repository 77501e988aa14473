"""A pod as manifests describe it, run on this machine: files as the kubelet lays them out, and variables.

Where a pod has /etc/toolhub a folder of the test has the same files, and every text that names the one names the other.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

DOCKERFILE = Path(__file__).parents[3] / "Dockerfile"


@dataclass(frozen=True)
class Pod:
    """The first pod of the StatefulSet in `documents`; `given`: Secrets and ConfigMaps that the operator has made."""

    documents: Sequence[Mapping[str, Any]]
    given: Mapping[str, Mapping[str, bytes]]
    folder: Path
    """Stands for the root of the pod."""

    @classmethod
    def of(cls, manifests: Path, folder: Path, **given: Mapping[str, bytes]) -> Pod:
        """`given` by their names, `_` for `-`."""
        documents = [each for each in yaml.safe_load_all(manifests.read_text()) if each]
        return cls(documents, {name.replace("_", "-"): values for name, values in given.items()}, folder)

    def one(self, kind: str, name: str = "") -> Mapping[str, Any]:
        (found,) = (each for each in self.documents if each["kind"] == kind and name in ("", each["metadata"]["name"]))
        return found

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.one("StatefulSet")["spec"]["template"]["spec"]  # type: ignore[no-any-return]

    @cached_property
    def container(self) -> Mapping[str, Any]:
        (container,) = self.spec["containers"]
        return container  # type: ignore[no-any-return]

    @cached_property
    def _places(self) -> Mapping[str, Path]:
        """Paths of the pod, and where they are here; the longest first."""
        mounts = {mount["mountPath"]: mount["name"] for mount in self.container["volumeMounts"]}
        for init in self.spec.get("initContainers", ()):
            mounts |= {mount["mountPath"]: mount["name"] for mount in init["volumeMounts"]}
        return {path: self.folder / mounts[path] for path in sorted(mounts, key=len, reverse=True)}

    def here(self, text: str) -> str:
        """`text` with the paths of this machine."""
        paths = "|".join(map(re.escape, self._places))
        return re.sub(rf"(?<![\w./-])({paths})(?=[/\s\"'}},]|$)", lambda found: str(self._places[found[1]]), text)

    def mount(self) -> None:
        """Write every volume, and run what runs before the hub."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for volume in self.spec["volumes"]:
            self.write(volume)
        for name in ("data", *self._places):
            place = self.folder / name if name == "data" else self._places[name]
            place.mkdir(mode=0o700, exist_ok=True)
        for init in self.spec.get("initContainers", ()):
            subprocess.run([self.here(word) for word in init["command"]], check=True, timeout=60)

    def write(self, volume: Mapping[str, Any]) -> None:
        """A volume of ConfigMaps and Secrets, written or written anew: all files at once, by one link that moves."""
        files = {name: self.here(text.decode()).encode() for name, text in self._files(volume)}
        folder = self.folder / volume["name"]
        folder.mkdir(mode=0o755, exist_ok=True)
        if not files:
            return
        written = folder / f"..{len(list(folder.iterdir()))}"
        written.mkdir(mode=0o755)
        for name, text in files.items():
            (written / name).write_bytes(text)
            (written / name).chmod(0o444)
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(f"..data/{name}")
        (folder / "..data_tmp").symlink_to(written.name)
        (folder / "..data_tmp").rename(folder / "..data")

    def _files(self, volume: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
        for source in volume.get("projected", {}).get("sources", [volume]):
            if from_map := source.get("configMap"):
                values = self._config_map(from_map["name"])
            elif from_secret := source.get("secret"):
                name = from_secret.get("name") or from_secret["secretName"]
                values = self.given.get(name, {}) if from_secret.get("optional") else self.given[name]
            else:
                continue
            items = (from_map or from_secret).get("items") or [{"key": name, "path": name} for name in values]
            yield from ((item["path"], values[item["key"]]) for item in items)

    def _config_map(self, name: str) -> Mapping[str, bytes]:
        if name in self.given:
            return self.given[name]
        return {file: text.encode() for file, text in self.one("ConfigMap", name)["data"].items()}

    def environment(self) -> dict[str, str]:
        """Of the image, under that of the container."""
        image = dict(re.findall(r"^ *(?:ENV )?(TOOLHUB_\w+)=(\S+)", DOCKERFILE.read_text(), re.MULTILINE))
        own = {each["name"]: self._value(each) for each in self.container["env"]}
        return {name: self.here(value) for name, value in {**image, **own}.items()}

    def _value(self, variable: Mapping[str, Any]) -> str:
        if "value" in variable:
            return str(variable["value"])
        named = variable["valueFrom"]["secretKeyRef"]
        return self.given[named["name"]][named["key"]].decode()

    def arguments(self) -> list[str]:
        """After `serve`."""
        serve, *arguments = self.container["args"]
        assert serve == "serve"
        return [self.here(argument) for argument in arguments]

    def grace_s(self) -> float:
        return float(self.spec["terminationGracePeriodSeconds"])

    def set_file(self, config_map: str, name: str, text: str) -> None:
        """As `kubectl apply` and then the kubelet do it."""
        self.one("ConfigMap", config_map)["data"][name] = text
        for volume in self.spec["volumes"]:
            if "projected" in volume:
                self.write(volume)
