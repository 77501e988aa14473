"""Why a command that installs something failed, from what it printed. Needs the standard library only: `make setup`
asks here before there is an environment."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ERROR = re.compile(r"(?:npm )?(?:error|ERR!)[: ]+|E: |fatal: ", re.IGNORECASE)
_CONTINUED = re.compile(r" {4,}\S")
"""pip indents what belongs to an error."""
_RETRYING = re.compile(r"WARNING: Retrying .* (connection broken by .*?)(?:: /\S*)?$")
_WITHOUT_NEWS = re.compile(r"at .*|errno .*|code .*|A complete log of this run .*|Could not find a version .*|")
"""Frames of a stack, and what another line of the same failure says better."""
_OTHER_PYTHON = re.compile(r"Ignored the following versions that require a different python version: (.*)")
_NOT_FOUND = re.compile(r"No matching distribution found for ([\w.\[\]-]+)==(\S+)")


def failure_reason(output: str, exit_code: int) -> str:
    """One line: each error that was printed, else the last line. pip, npm, Go, apt and git are understood."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    broken = [found[1] for line in lines if (found := _RETRYING.match(line))]
    errors = _errors(lines)
    missing = next((found for line in errors if (found := _NOT_FOUND.match(line))), None)
    reasons = broken[-1:]
    for error in errors:
        if ignored := _OTHER_PYTHON.match(error):
            versions = [each for each in ignored[1].split("; ") if missing and each.startswith(f"{missing[2]} ")]
            reasons.extend(f"{missing[1]} {each}" for each in versions if missing)
        elif not _WITHOUT_NEWS.fullmatch(error):
            reasons.append(error)
    return "; ".join(dict.fromkeys(reasons)) or (lines[-1].strip() if lines else f"exit code {exit_code}")


def _errors(lines: Iterable[str]) -> list[str]:
    errors: list[str] = []
    is_error = False
    for line in lines:
        if is_error and _CONTINUED.match(line):
            errors[-1] += f" {line.strip()}"
            continue
        is_error = _ERROR.match(line) is not None
        if is_error:
            errors.append(_ERROR.sub("", line, count=1).strip())
    return errors
