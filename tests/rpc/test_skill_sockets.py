"""A script beside a hub that listens on a Unix socket: it calls what it may, and reaches the socket at no level."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.fakes.ladders import ladder_of
from tests.rpc.skill_runs import POLICY, script_skill, skill_hub
from toolhub_service.sandbox.request import Level

TRIES = """
from toolhub_tools import call
import json, socket, sys
given = json.load(sys.stdin)
def tried(kind, name):
    try:
        if kind == "new":
            with socket.socket(socket.AF_UNIX) as made:
                made.connect(name)
        else:
            with socket.socketpair(socket.AF_UNIX, getattr(socket, kind))[0] as made:
                made.connect(name)
        return "connected"
    except OSError as error:
        return type(error).__name__
kinds = ("new", "SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET", "SOCK_RAW")
told = {name: [tried(kind, name) for kind in kinds] for name in given["paths"]}
told["time"] = bool(call("core/util.time.now", {}))
json.dump(told, sys.stdout)
"""


@pytest.mark.parametrize("level", ["landlock", "bubblewrap"])
async def test_a_script_with_tools_does_not_reach_the_hubs_own_socket(tmp_path: Path, level: Level) -> None:
    """Before, it connected without bubblewrap, and was `local`: it read the audit log without a key."""
    await ladder_of(level)
    script_skill(tmp_path / "skills", "tries", TRIES, tools=["core/util.time.now"], argv=["{python}", "run.py"])
    with TemporaryDirectory() as folder:
        widen(folder)
        place = f"{folder}/hub.sock"
        bubblewrap = "off" if level == "landlock" else ""
        settings = {"server": {"listen": f"unix:{place}"}, "tools": {"bubblewrap": bubblewrap}}
        async with skill_hub(tmp_path, tmp_path / "skills", policy=POLICY, settings=settings) as hub:
            widen(place)
            value = await hub.value("skill/tries", {"paths": [place, f"{place}.none", "/dev/log"]})
            assert value.pop("time") is True
            assert "connected" not in json.dumps(value)


def widen(path: str) -> None:
    """As wide as an operator can open it."""
    Path(path).chmod(0o777)
