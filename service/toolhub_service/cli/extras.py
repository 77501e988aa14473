"""`toolhub extras …`: list the optional packages of the hub, and install them where the hub is installed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable

import click

from toolhub_service.app.installation import (
    EXTRAS,
    CannotInstallError,
    command_to_install,
    is_installed,
    requirements_of,
)
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import (
    EXIT_REFUSED,
    explaining,
    footnote,
    print_json,
    print_line,
    print_table,
    text_option,
    wants_json,
)


@click.group(cls=SuggestingGroup)
def extras() -> None:
    """List and install the optional packages that features need."""


@extras.command("list")
@text_option
def list_extras(as_json: bool) -> None:
    """List the extras, what each is for, and whether it is installed.

    \b
    Examples:
      toolhub extras list
      toolhub extras list --json
    """
    with explaining(CannotInstallError):
        found = {name: requirements_of(name) for name in EXTRAS}
    if wants_json(as_json):
        print_json(
            [
                {
                    "name": name,
                    "isInstalled": all(map(is_installed, requirements)),
                    "requirements": requirements,
                    "purpose": EXTRAS[name],
                }
                for name, requirements in found.items()
            ]
        )
        return
    rows = [(name, "yes" if all(map(is_installed, found[name])) else "no", EXTRAS[name]) for name in found]
    print_table(("EXTRA", "INSTALLED", "WHAT IT IS FOR"), rows)
    footnote("Install: toolhub extras install EXTRA …")


@extras.command()
@click.argument("names", nargs=-1, required=True, type=click.Choice(tuple(EXTRAS)), metavar="EXTRA...")
@click.option("--dry-run", is_flag=True, help="Print the command that would be run, and run nothing.")
def install(names: tuple[str, ...], dry_run: bool) -> None:
    """Install the packages of extras into the environment that the hub runs in.

    pip, uv or pipx is used, whichever installed the hub. A hub that is running must be restarted.

    \b
    Examples:
      toolhub extras install web
      toolhub extras install db parquet --dry-run
    """
    with explaining(CannotInstallError):
        wanted = dict.fromkeys(requirement for name in names for requirement in requirements_of(name))
        missing = [requirement for requirement in wanted if not is_installed(requirement)]
        if not missing:
            print_line(f"Nothing to do: everything of {_join_names(names)} is installed.")
            return
        command = command_to_install(missing)
    print_line(shlex.join(command), err=not dry_run)
    if dry_run:
        return
    with explaining(OSError, place=command[0]):
        ended = subprocess.run(command, check=False).returncode  # noqa: S603 - composed by command_to_install
    if ended != 0:
        print_line(f"Not installed: the command above ended with {ended}.", err=True)
        sys.exit(EXIT_REFUSED)
    print_line(f"Installed: {_join_names(names)}. Restart a hub that is running.")


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(names)
