"""Keys that a KMS's command prints, and the doctor's report on keys: failures, and that no key is shown."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.hub import settings_of
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.doctor import State
from toolhub_service.app.doctor.credentials import credential_checks
from toolhub_service.app.wiring.credentials import sealing_keys

KEY: Final = bytes(range(32))
WORDS: Final = base64.b64encode(KEY).decode()
FAILS: Final = f"import sys; print({WORDS!r}); print({WORDS!r}, file=sys.stderr); sys.exit(3)"


def by_command(code: str, **more: Any) -> Mapping[str, Any]:
    return {"keys": [{"id": "kms", "command": [sys.executable, "-c", code]}], **more}


@pytest.mark.promise("credentials.sealed")
@pytest.mark.parametrize("code", [f"print({WORDS!r})", f"print({KEY.hex()!r})"], ids=["base64", "hex"])
def test_a_key_that_a_command_prints_seals(tmp_path: Path, code: str) -> None:
    keys = sealing_keys(settings_of(tmp_path, {"credentials": by_command(code)}))
    assert keys.open("kms", keys.seal(b"plain", "place"), "place") == b"plain"
    assert WORDS not in repr(keys)


@pytest.mark.promise("credentials.sealed")
@pytest.mark.parametrize(
    ("credentials", "why"),
    [
        (by_command(FAILS), "failed with exit code 3"),
        (by_command(f"print({WORDS!r}, flush=True); input()"), "failed with exit code"),
        (by_command(f"print({WORDS!r}, {WORDS!r})"), "is not 32 bytes in base64 or hex"),
        (by_command(f"print({WORDS[:-8]!r})"), "is not 32 bytes in base64 or hex"),
        (
            by_command(f"import sys; sys.stdout.buffer.write(b'\\xff' * 100_000 + {WORDS.encode()!r})"),
            "is not 32 bytes",
        ),
        (by_command("pass"), "is not 32 bytes in base64 or hex"),
        ({"keys": [{"id": "kms", "command": ["/nowhere/kms-decrypt", WORDS]}]}, "cannot be started"),
        (
            by_command(f"import time; print({WORDS!r}, flush=True); time.sleep(600)", command_timeout_s=0.2),
            "did not end within 0.2 s",
        ),
    ],
    ids=["fails", "asks", "two keys", "too short", "rubbish", "nothing", "not there", "hangs"],
)
def test_a_command_that_prints_no_key_is_reported_without_its_output(
    tmp_path: Path, credentials: Mapping[str, Any], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(tmp_path, {"credentials": credentials})
    with pytest.raises(ValueError, match="kms: ") as unfit:
        sealing_keys(settings)
    assert why in str(unfit.value)
    (finding,) = credential_checks(settings)
    assert (finding.state, "docs/credentials.md" in finding.advice) == (State.FAIL, True)
    told = f"{unfit.value!r} {finding} {capfd.readouterr()}"
    assert not [part for part in (WORDS, WORDS[:-8], KEY.hex()) if part in told]


PER_USER: Final = {"shop": {"kind": "mcp", "url": "https://shop.example", "auth": {"per_user": {"kind": "header"}}}}
HOST: Final = {"name": "api", "url": "https://api.example", "auth": {"per_user": {"kind": "header"}}}


def checked(home: Path, settings: Mapping[str, Any], sources: Mapping[str, Any]) -> Sequence[tuple[State, str]]:
    chosen = settings_of(home, settings)
    Paths(chosen).sources.parent.mkdir(parents=True, exist_ok=True)
    Paths(chosen).sources.write_text(json.dumps({"sources": sources}))
    return [(finding.state, finding.text) for finding in credential_checks(chosen)]


def test_doctor_states_the_sealing_key_of_credentials_and_their_owners(tmp_path: Path) -> None:
    assert checked(tmp_path, {}, {}) == [], "nobody asks for any"
    ((state, text),) = checked(tmp_path, {"credentials": {"hosts": [HOST]}}, PER_USER)
    assert (state, "api, shop: the hub makes" in text) == (State.OK, True)
    named = {"credentials": by_command(f"print({WORDS!r})")}
    assert checked(tmp_path, named, PER_USER) == [(State.OK, "sealed under kms, for shop")]
    ((state, text),) = checked(tmp_path, {"stores": {"redis_url": "redis://127.0.0.1:1"}}, PER_USER)
    assert (state, "credentials.keys" in text) == (State.FAIL, True)
    own = Paths(settings_of(tmp_path)).credentials_key
    own.write_text("not a key")
    own.chmod(0o600)
    ((state, text),) = checked(tmp_path, {}, PER_USER)
    assert state is State.FAIL
    assert "not a key" not in text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"url": "https://api.example/v1"}, "give scheme, host and port alone"),
        ({"url": "http://api.example"}, "give https://api.example"),
        ({"url": "ftp://api.example"}, "credentials.hosts: api.url"),
        ({"auth": {}}, "say what credential callers have there"),
        ({"auth": {"per_user": {"kind": "header", "header": "Accept"}}}, "redirects take along"),
        ({"auth": {"per_user": {"kind": "exchange"}}}, "needs `token_url` and `client_id`"),
    ],
)
def test_a_host_whose_credential_could_go_elsewhere_is_refused(
    tmp_path: Path, change: Mapping[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        settings_of(tmp_path, {"credentials": {"hosts": [{**HOST, **change}]}})
