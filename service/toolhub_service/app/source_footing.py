"""What a source rests on outside of sources.yaml, its secrets and certificates: whether any of it has changed since."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from toolhub_service.app.file_stamp import stamp_of
from toolhub_service.app.source_rules import values_of
from toolhub_service.app.sources_file import ValueMissing, resolve_value
from toolhub_service.settings.source_terms import SecretRef
from toolhub_service.settings.sources import AnySource, LangChainSource


def footing(source: AnySource) -> str:
    """A digest of it all, another one once any of it is another, or is there or gone."""
    if isinstance(source, LangChainSource):
        return ""
    found = [_held(value) for value in values_of(source).values() if isinstance(value, SecretRef)]
    certificates = (source.tls.ca_file, source.tls.certificate_file, source.tls.key_file)
    found += [str(stamp_of(Path(path).expanduser())) for path in certificates if path]
    return sha256("\0".join(found).encode("utf-8", "surrogateescape")).hexdigest()


def _held(value: SecretRef) -> str:
    try:
        return resolve_value(value)
    except ValueMissing as missing:
        return str(missing)
