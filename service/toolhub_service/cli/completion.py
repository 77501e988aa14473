"""`toolhub completion SHELL`: the script that makes the shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from toolhub_service.cli.root import toolhub


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    For this session, and for every one:
      eval "$(toolhub completion bash)"
      toolhub completion bash > ~/.local/share/bash-completion/completions/toolhub
      toolhub completion zsh > "${fpath[1]}/_toolhub"
      toolhub completion fish > ~/.config/fish/completions/toolhub.fish
    """
    maker = get_completion_class(shell)
    if maker is None:
        raise click.ClickException(f"no completion for {shell}")
    click.echo(maker(toolhub, {}, "toolhub", "_TOOLHUB_COMPLETE").source())
