"""The suite's client scenarios by the versions in which they run here, and those that do not.

A newer suite that has another one fails a test (`test_conformance.py`), which asks for a place here and, perhaps, an
entry in `expected_failures.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

BASELINE: Final = Path(__file__).with_name("expected_failures.yaml")

BOTH_ERAS: Final = (
    "tools_call",
    "json-schema-2020-12-preservation",
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/basic-cimd",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/scope-step-up",
    "auth/scope-retry-limit",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/pre-registration",
)
FIRST_ERA: Final = ("initialize", "elicitation-sep1034-client-defaults", "sse-retry")
SECOND_ERA: Final = (
    "request-metadata",
    "sep-2322-client-request-state",
    "http-standard-headers",
    "http-custom-headers",
    "http-invalid-tool-headers",
    "json-schema-ref-no-deref",
    "auth/resource-mismatch",
    "auth/metadata-issuer-mismatch",
    "auth/authorization-server-migration",
    "auth/offline-access-scope",
    "auth/offline-access-not-supported",
    "auth/iss-supported",
    "auth/iss-not-advertised",
    "auth/iss-supported-missing",
    "auth/iss-wrong-issuer",
    "auth/iss-unexpected",
    "auth/iss-normalized",
)
CREDENTIALS: Final = ("auth/client-credentials-basic", "auth/client-credentials-jwt")
"""The extension that the hub has, in both generations."""
EXTENSIONS: Final = (
    "auth/enterprise-managed-authorization",
    "auth/dpop",
    "auth/dpop-nonce",
    "auth/wif-jwt-bearer",
)
"""Further extensions, in the generation that the suite runs them in by itself."""
OLDEST: Final = ("auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback")
"""Of 2025-03-26, which the hub does not speak; told to a client of the older generation."""
NOT_RUN: Final[Mapping[str, str]] = {
    f"sep-2640-client-{name}": "The skills extension (SEP-2640): read by calls, which the suite does not make."
    for name in ("no-prefetch", "verify-digest", "verify-size", "verify-frontmatter")
}

VERSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "2025-03-26": OLDEST,
    "2025-11-25": (*FIRST_ERA, *BOTH_ERAS, *CREDENTIALS, *EXTENSIONS),
    "2026-07-28": (*SECOND_ERA, *BOTH_ERAS, *CREDENTIALS),
}
"""What runs in which version."""


def expected_failures() -> dict[str, frozenset[str]]:
    """Ids of checks by scenario, from the suite's own kind of file."""
    found: dict[str, set[str]] = {}
    for entry in yaml.safe_load(BASELINE.read_text())["client"]:
        scenario, _, check = entry.partition(":")
        found.setdefault(scenario, set()).add(check)
    return {scenario: frozenset(checks) for scenario, checks in found.items()}
