"""Which names indicate a secret: `password`, `apiKey`, `X-Auth-Token`, `client-secret`, in any spelling.

A name is split into words at case changes and at anything that is not a letter; its last words decide, so
`access_token` does and `token_type`, `max_tokens_per_min` or `secret_name` do not.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TAIL_IGNORED = frozenset(
    {
        *("value", "values", "plain", "plaintext", "raw", "string", "str", "hash", "encoded", "b"),
        *("v", "old", "new", "current", "previous", "backup", "prod", "production", "staging", "dev", "test", "live"),
    }
)
_ALONE = frozenset(
    {
        *("password", "passwords", "passwd", "pwd", "passphrase", "passcode", "secret", "secrets", "token", "tokens"),
        *("authorization", "auth", "bearer", "jwt", "cookie", "cookies", "credential", "credentials", "creds", "cred"),
        *("apikey", "apikeys", "sas", "otp", "totp", "psk", "sessionid"),
        *("pin", "cvv", "ssn", "mnemonic", "kubeconfig"),
    }
)
_AFTER_ANOTHER = frozenset({"pass", "pw"})
_KEY_OF = frozenset(
    {
        *("api", "access", "private", "secret", "signing", "encryption", "master", "account", "shared", "auth"),
        *("service", "client", "storage", "hmac", "decryption", "subscription", "admin", "app", "application"),
    }
)
_PHRASES = frozenset(
    {
        *(("connection", "string"), ("connection", "str"), ("conn", "string"), ("conn", "str")),
        *(("seed", "phrase"), ("kube", "config")),
    }
)
_JOINED = re.compile(
    r"(?:password|passwd|passphrase|secret|token|apikey|accesskey|privatekey|secretkey|authkey|credentials?|cookie)s?$"
)

NAME_SIGN: Final = (
    r"(?i:passw|passp|passc|[_\-]pass|pwd|secret|token|(?:api|access|private|signing|encryption|master|account|shared|auth"
    r"|service|client|storage|hmac|decryption|subscription|admin|app|application)[ _\-]?key|authoriz|auth\b|auth[_\-]"
    r"|bearer|jwt|cookie|cred|(?:\b|\\[bfnrt])sas\b|otp\b|psk\b|pin\b|cvv\b|ssn\b|[_\-]pw\b|sessionid"
    r"|mnemonic|kube[ _\-]?config|seed[ _\-]?phrase|conn(?:ection)?[ _\-]?str)"
)
"""RE2: occurs in every text that contains a name accepted by `is_secret_name` (and in some others)."""


@lru_cache(maxsize=8192)
def is_secret_name(name: str) -> bool:
    """Return whether a value under this name must not be shown."""
    words = [word.lower() for word in _WORD.findall(name[-200:])]
    if tuple(words[-2:]) in _PHRASES:
        return True
    while len(words) > 1 and words[-1] in _TAIL_IGNORED:
        words.pop()
    if not words:
        return False
    last = words[-1]
    if last in _ALONE or _JOINED.search(last):
        return True
    before = words[-2] if len(words) > 1 else ""
    if last in ("key", "keys"):
        return before in _KEY_OF
    return bool(before) and last in _AFTER_ANOTHER
