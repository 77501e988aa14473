"""What is said about a failed installation: the reason, not the last line."""

from __future__ import annotations

import pytest

from tests.command_failures import failure_reason

NEWER_PYTHON = """\
Looking in links: /opt/wheels
ERROR: Ignored the following versions that require a different python version: 3.0.2 Requires-Python >=3.11.5; \
4.1.2 Requires-Python >=3.11.5; 4.1.3 Requires-Python >=3.12
ERROR: Could not find a version that satisfies the requirement soupsieve==4.1.2 (from versions: 0.4, 0.5, 2.10)
ERROR: No matching distribution found for soupsieve==4.1.2
"""
NO_NETWORK = """\
WARNING: Retrying (Retry(total=1)) after connection broken by 'NewConnectionError('<x>: refused')': /simple/a/
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<x>: refused')': /simple/a/
ERROR: Could not find a version that satisfies the requirement a==1 (from versions: none)
ERROR: No matching distribution found for a==1
"""
OTHER_HASH = """\
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES.
    a==1 from file:///a-1-py3-none-any.whl:
        Expected aa
             Got bb
"""
NPM = """\
npm error code ECONNREFUSED
npm error errno ECONNREFUSED
npm error FetchError: request to http://127.0.0.1:9/left-pad failed, reason: connect ECONNREFUSED 127.0.0.1:9
npm error     at ClientRequest.<anonymous> (/usr/lib/index.js:130:14)
npm error
npm error A complete log of this run can be found in: /home/ann/.npm/_logs/debug-0.log
"""
APT = "Building dependency tree...\nReading state information...\nE: Unable to locate package bubblewrap\n"
GO = 'cel.dev/expr@v0.25.2: Get "http://127.0.0.1:9/": dial tcp 127.0.0.1:9: connect: connection refused\n\n'


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (NEWER_PYTHON, "soupsieve 4.1.2 Requires-Python >=3.11.5; No matching distribution found for soupsieve==4.1.2"),
        (
            NO_NETWORK,
            "connection broken by 'NewConnectionError('<x>: refused')'; No matching distribution found for a==1",
        ),
        (
            OTHER_HASH,
            "THESE PACKAGES DO NOT MATCH THE HASHES. a==1 from file:///a-1-py3-none-any.whl: Expected aa Got bb",
        ),
        (NPM, "FetchError: request to http://127.0.0.1:9/left-pad failed, reason: connect ECONNREFUSED 127.0.0.1:9"),
        (APT, "Unable to locate package bubblewrap"),
        (GO, GO.strip()),
        ("fatal: not a git repository\nhint: something else\n", "not a git repository"),
        ("Collecting a\nERROR: No space left on device\nWARNING: a newer pip exists\n", "No space left on device"),
        ("no room left\n", "no room left"),
        ("", "exit code 3"),
    ],
)
def test_a_failed_command_is_reported_with_its_reason(output: str, reason: str) -> None:
    assert failure_reason(output, 3) == reason
