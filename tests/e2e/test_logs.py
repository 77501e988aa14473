"""The standard error of a hub that serves: each line is JSON, whoever writes it, and is written once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

from tests.processes import WITHIN_S

# Python imports it at its start. What it does once it is told to is what libraries do.
SITE = """
import logging, pathlib, sys, threading, time, warnings
logging.getLogger("chatty").addHandler(logging.StreamHandler())
class Leaves:
    def __del__(self):
        raise ValueError("left behind")
def act():
    here = pathlib.Path(__file__).parent
    while not (here / "act").exists():
        time.sleep(0.01)
    warnings.warn("an old way", UserWarning)
    logging.getLogger("chatty").warning("said once")
    Leaves()
    (here / "acted").touch()
    raise RuntimeError("in a thread")
if "serve" in sys.argv:
    threading.Thread(target=act).start()
"""
SAID = ("an old way", "said once", "left behind", "in a thread")


def test_every_line_of_the_log_is_json_and_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    settings = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(tmp_path),
        "TOOLHUB_DATA_DIR": str(tmp_path / "hub"),
        "TOOLHUB_METRICS_LISTEN": "",
        "TOOLHUB_SERVER_MCP_ENABLED": "false",
    }
    serve = [sys.executable, "-m", "toolhub_service", "serve", "--listen", f"unix:{tmp_path}/hub.sock"]
    log = tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(serve, env=settings, stdout=subprocess.PIPE, stderr=errors, text=True) as hub,
    ):
        try:
            assert hub.stdout is not None
            assert list(takewhile(lambda line: not line.startswith("Next"), hub.stdout)), log.read_text()
            (tmp_path / "act").touch()
            while not all(words in log.read_text() for words in SAID):
                assert hub.poll() is None, log.read_text()
        finally:
            hub.terminate()
        assert hub.wait(WITHIN_S) == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert all({"time", "level", "event"} <= event.keys() for event in events)
    for words in SAID:
        assert sum(words in json.dumps(event) for event in events) == 1, words
