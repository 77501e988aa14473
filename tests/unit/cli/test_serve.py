from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toolhub_service.cli.serve import SWITCH_INTERVAL_S, client_environment, greet
from toolhub_service.settings.loading import load_settings

SERVE = """
import sys
import toolhub_service.app.serving

async def serve(*args, **kwargs):
    print(sys.getswitchinterval())

toolhub_service.app.serving.serve = serve
from toolhub_service.cli.root import main
main()
"""


def test_a_thread_of_a_hub_holds_the_interpreter_for_half_a_millisecond_at_a_time(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SERVE, "serve", "--data-dir", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert float(ended.stdout) == pytest.approx(SWITCH_INTERVAL_S)


@pytest.mark.parametrize(
    ("settings", "address", "variables"),
    [
        ({}, "127.0.0.1:50051", ""),
        ({}, "127.0.0.1:7", "TOOLHUB_ADDRESS=127.0.0.1:7 "),
        ({"TOOLHUB_SERVER_TLS_CERTIFICATE_FILE": "hub.pem"}, "127.0.0.1:50051", "TOOLHUB_CA_FILE=hub.pem "),
        ({"TOOLHUB_AUTH_MODES": "api-key"}, "127.0.0.1:50051", "TOOLHUB_API_KEY=KEY "),
        (
            {"TOOLHUB_SERVER_TLS_CLIENT_CA_FILE": "clients.pem"},
            "127.0.0.1:50051",
            "TOOLHUB_CERT_FILE=CERTIFICATE TOOLHUB_KEY_FILE=KEY ",
        ),
    ],
)
def test_the_next_command_names_what_a_client_must_set(settings: dict[str, str], address: str, variables: str) -> None:
    assert client_environment(load_settings(None, settings), address) == variables


def test_the_greeting_names_the_port_for_keys_and_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    settings = load_settings(None, {"TOOLHUB_SERVER_TLS_KEYS_LISTEN": "127.0.0.1:50053"})
    words = "for API keys and tokens without a certificate: 127.0.0.1:"
    for bound, shown in ((0, "50053"), (7, "7")):
        greet(settings, 50051, 0, keys_port=bound)
        assert f"{words}{shown}\n" in capsys.readouterr().out
