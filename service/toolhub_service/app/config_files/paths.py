"""Paths of all files: each has its own setting, and otherwise lies in the data folder."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from toolhub_service.app.config_files.key_file import KeyFile
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import data_dir_of


class Paths(msgspec.Struct, frozen=True):
    settings: Settings

    @property
    def data_dir(self) -> Path:
        return data_dir_of(self.settings, os.environ)

    @property
    def policy(self) -> Path:
        return self._or_data(self.settings.policy.file, "policy.yaml")

    @property
    def workspaces(self) -> Path:
        return self._or_data(self.settings.workspace.root, "workspaces")

    @property
    def sources(self) -> Path:
        return self._or_data(self.settings.sources.file, "sources.yaml")

    @property
    def source_secrets(self) -> Path:
        """Folder of the secrets that `toolhub sources add` replaces by references; absolute, because sources.yaml names
        it."""
        # sources.yaml names the files in it, and resolves relative names against its own folder.
        return (self.data_dir / "secrets").absolute()

    @property
    def audit(self) -> Path:
        return self._or_data(self.settings.audit.file, "audit.db")

    @property
    def audit_checkpoints(self) -> Path:
        return self._or_data(self.settings.audit.checkpoint_file, "audit-checkpoints.jsonl")

    @property
    def audit_key(self) -> Path:
        return self._or_data(self.settings.audit.key_file, "audit.key")

    @property
    def stores(self) -> Path:
        return self._or_data(self.settings.stores.file, "hub.db")

    @property
    def memory(self) -> Path:
        return self._or_data(self.settings.memory.file, "memory.db")

    @property
    def artifacts(self) -> Path:
        return self._or_data(self.settings.artifacts.folder, "artifacts")

    @property
    def skills(self) -> Path:
        """Checked-out commits of repositories with skills."""
        return self.data_dir / "skills"

    @property
    def plan_key(self) -> Path:
        return self.data_dir / "plan.key"

    @property
    def credentials_key(self) -> Path:
        """The key that seals callers' credentials when the settings name none."""
        return self.data_dir / "credentials.key"

    @property
    def backup_key(self) -> Path:
        """The key that signs backups. No backup contains it."""
        return self.data_dir / "backup.key"

    @property
    def backup_public_key(self) -> Path:
        """The key that verifies backups; to be stored apart from them."""
        return self.data_dir / "backup.pub"

    @property
    def api_keys(self) -> Path:
        return self._or_data(self.settings.auth.api_keys_file, "api-keys.yaml")

    @property
    def api_key_uses(self) -> Path:
        return self.data_dir / "api-keys-used.json"

    @property
    def bubblewrap(self) -> str | None:
        """None: search for it; empty: do without."""
        setting = self.settings.tools.bubblewrap
        return "" if setting == "off" else setting or None

    def key_file(self) -> KeyFile:
        return KeyFile(self.api_keys)

    def make(self) -> None:
        """Make the data folder, readable by nobody else. Raises OSError."""
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _or_data(self, setting: str, name: str) -> Path:
        return Path(setting).expanduser() if setting else self.data_dir / name
