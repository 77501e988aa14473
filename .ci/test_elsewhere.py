"""Runs the tests that touch the machine again as other machines would: without bubblewrap, and as an ordinary user.

`make test-elsewhere` calls it after `make test`, whose environment it uses. bubblewrap itself shows the machine without
bubblewrap, and with the folders open that a user who is not root could not enter (Python below /root). What a machine
cannot show is said in one line. In both runs a test that lacks something is skipped, and says so.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = (
    "tests/unit/sandbox",
    "tests/unit/test_services.py",
    "tests/unit/tools/test_exec_run.py",
    "tests/unit/sandbox/test_process.py",
    "tests/rpc/test_examples_of_skills.py",
    "tests/rpc/test_programs.py",
    "tests/rpc/test_screenshots.py",
    "tests/rpc/test_skill_scripts.py",
    "tests/security/test_browser_ssrf.py",
    "tests/security/test_callers_token_not_forwarded.py",
    "tests/security/test_command_confinement.py",
    "tests/security/test_hostile_skills.py",
    "tests/security/test_langchain_confinement.py",
)
SHOWN_TO_ROOT_ONLY = frozenset({"tests/rpc/test_screenshots.py"})
"""As another user, the browser that Playwright starts with its own sandbox does not come up in bubblewrap's view."""
USER = "nobody"
SAME_MACHINE = ("--cap-add", "ALL", "--dev-bind", "/", "/")


def main() -> int:
    """0 where no test failed."""
    bubblewrap = shutil.which("bwrap")
    if bubblewrap and not _succeeds((bubblewrap, *SAME_MACHINE, "true")):
        bubblewrap = None
    runs = []
    if bubblewrap:
        hidden = ("--dev-bind", "/dev/null", str(Path(bubblewrap).resolve()))
        runs.append(_run("without bubblewrap", (bubblewrap, *SAME_MACHINE, *hidden, "--")))
    else:
        _tell("not run without bubblewrap: it is missing or makes no namespaces here, so `make test` did without it")
    if os.geteuid() != 0:
        _tell("not run as another user: `make test` ran as one that is not root")
        return max(runs, default=0)
    opened = tuple(_opened())
    if opened and not bubblewrap:
        closed = opened[opened.index("--tmpfs") + 1]
        _tell(
            f"not run as {USER}, who cannot enter {closed}: have Python and this tree elsewhere, or install bubblewrap"
        )
        return max(runs, default=0)
    account = pwd.getpwnam(USER)
    with tempfile.TemporaryDirectory(prefix="toolhub-elsewhere-") as home:
        os.chown(home, account.pw_uid, account.pw_gid)
        as_user = ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--")
        shown = (bubblewrap, *SAME_MACHINE, *opened, "--") if bubblewrap and opened else ()
        runs.append(_run(f"as {USER}", (*shown, *as_user), home))
    return max(runs)


def _opened() -> Iterator[str]:
    """Arguments of bubblewrap that open the way to this tree and to Python for everybody; none where it is open."""
    wanted = [ROOT, Path(sys.base_prefix).resolve()]
    closed = {path: folder for path in wanted if (folder := _closed_folder(path))}
    for folder in sorted(set(closed.values())):
        yield from ("--perms", "0755", "--tmpfs", str(folder))
    for path, folder in closed.items():
        for above in reversed([each for each in path.parents if folder in each.parents]):
            yield from ("--perms", "0755", "--dir", str(above))
        yield from ("--bind", str(path), str(path))


def _closed_folder(path: Path) -> Path | None:
    """The outermost folder on the way to the path that others may not enter."""
    closed = (each for each in reversed(path.parents) if not each.stat().st_mode & stat.S_IXOTH)
    return next(closed, None)


def _run(name: str, before: Sequence[str], home: str = "") -> int:
    _tell(name)
    environment = {name: value for name, value in os.environ.items() if name != "TOOLHUB_REQUIRE_SERVICES"}
    if home:
        environment |= {"HOME": home, "TMPDIR": home, "HYPOTHESIS_STORAGE_DIRECTORY": home}
    workers = environment.get("TESTS_IN_PARALLEL", "4")
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", workers, "--dist", "worksteal")
    files = [file for file in FILES if not home or file not in SHOWN_TO_ROOT_ONLY]
    return subprocess.run([*before, *pytest, *files], cwd=ROOT, env=environment, check=False).returncode


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _tell(text: str) -> None:
    print(f"test-elsewhere: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
