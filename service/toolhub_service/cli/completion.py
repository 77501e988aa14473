"""`toolhub completion SHELL`: the script that makes the shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from toolhub_service.cli.root import toolhub


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    bash: eval "$(toolhub completion bash)"
    """
    maker = get_completion_class(shell)
    if maker is None:
        raise click.ClickException(f"no completion for {shell}")
    click.echo(maker(toolhub, {}, "toolhub", "_TOOLHUB_COMPLETE").source())
