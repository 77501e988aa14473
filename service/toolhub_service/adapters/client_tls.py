"""How the hub shows itself and whom it trusts where a source is reached over TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class TlsTerms:
    """Paths of PEM files; empty: the system's CAs, no certificate shown."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


NO_TLS_FILES: Final = TlsTerms()


def client_context(terms: TlsTerms) -> ssl.SSLContext:
    """TLS 1.2 or later, servers verified. Raises OSError and ValueError where a file cannot be read or used."""
    context = ssl.create_default_context(cafile=terms.ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if terms.certificate_file:
        context.load_cert_chain(terms.certificate_file, terms.key_file or None)
    return context
