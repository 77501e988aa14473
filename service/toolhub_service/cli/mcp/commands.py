"""`toolhub mcp`: MCP on standard input and output, and how clients are configured."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.connection.chosen_context import ContextKey, complete_options
from toolhub_service.cli.connection.contexts import complete_context, read_contexts
from toolhub_service.cli.connection.hub_options import BY_DEFAULT, BY_ENVIRONMENT, OPTIONS, TYPED
from toolhub_service.cli.mcp.clients import CLIENTS, entry_of, entry_of_context, merge_entry, write_entry
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import print_json_line, print_line, print_text

if TYPE_CHECKING:
    from toolhub_service.settings.document import Settings

_LINE_MAX_BYTES: Final = 16 * 1024 * 1024
_PROBE_S: Final = 5.0
_SERVER_ERROR: Final = -32000


_context_option = click.option(
    "--context",
    "context_name",
    envvar="TOOLHUB_CONTEXT",
    shell_complete=complete_context,
    help="Hub and credential by name (`toolhub context list`); also TOOLHUB_CONTEXT.",
)


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@_context_option
@click.option("--url", envvar="TOOLHUB_MCP_URL", default="", help="MCP endpoint of a hub; also TOOLHUB_MCP_URL.")
@click.option("--api-key", envvar="TOOLHUB_API_KEY", default="", help="Key to call with; also TOOLHUB_API_KEY.")
@click.option("--embedded", is_flag=True, help="Start a hub in this process, even if one is running.")
@settings_options
@click.pass_context
def mcp(
    context: click.Context,
    context_name: str | None,
    url: str,
    api_key: str,
    embedded: bool,
    config_file: Path | None,
    data_dir: Path | None,
) -> None:
    """Serve MCP on standard input and output, for clients that start their servers.

    It connects to the hub at --url, else at TOOLHUB_ADDRESS, else of the current context, else on this machine. If
    there is none, it starts a hub in this process, on the same data folder.

    \b
    Examples:
      toolhub mcp config claude --write
      toolhub mcp
      toolhub mcp --context prod
      TOOLHUB_MCP_URL=https://hub.example/mcp TOOLHUB_API_KEY=thk_... toolhub mcp
    """
    if context.invoked_subcommand is not None:
        return
    try:
        settings = read_settings(config_file, data_dir)
        if embedded:
            _serve_embedded(settings, api_key)
            return
        # A given configuration means its hub, and not the one of a context.
        is_own = not context_name and bool(config_file or data_dir)
        hub = (None if is_own else _of_context(_options_in_use(context, context_name), url)) or Hub(
            _target(url, settings), api_key, _verify()
        )
        if hub.url:
            asyncio.run(_bridge(hub))
        else:
            _serve_embedded(settings, api_key)
    except click.ClickException as refused:
        # A client waits for answers and shows no standard error: so each request is answered with the reason.
        if not sys.stdin.isatty():
            _answer_all(refused.format_message())
        raise


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub to connect to."""

    url: str
    """URL of the MCP endpoint; empty: there is none."""
    key: str | Callable[[], str]
    verify: Any
    """httpx's `verify`."""


def _options_in_use(context: click.Context, context_name: str | None) -> dict[str, Any]:
    """Return the options with the context in use. Raises click.ClickException.

    `address` is the URL or TOOLHUB_ADDRESS, if these take precedence over the context's.
    """
    given: dict[str, tuple[Any, int]] = dict.fromkeys(OPTIONS, (None, BY_DEFAULT))
    ranks = {ParameterSource.COMMANDLINE: TYPED, ParameterSource.ENVIRONMENT: BY_ENVIRONMENT}
    for name, option in (("context_name", "context_name"), ("address", "url"), ("api_key", "api_key")):
        source = context.get_parameter_source(option)
        value = context_name if option == "context_name" else context.params.get(option)
        given[name] = (value or None, ranks.get(source, BY_DEFAULT) if source else BY_DEFAULT)
    if given["address"][0] is None and (address := os.environ.get("TOOLHUB_ADDRESS")):
        given["address"] = (address, BY_ENVIRONMENT)
    return complete_options(given)


def _of_context(chosen: Mapping[str, Any], url: str) -> Hub | None:
    """Return the context's hub; None: no context is in use. Raises click.ClickException."""
    name, key = chosen["context_name"], chosen["api_key"]
    if not name:
        return None
    from toolhub_service.cli.connection.login import mcp_urls, mcp_verify

    context = read_contexts().find(name)
    urls = [url] if url and chosen["address"] == url else mcp_urls(context)
    verify = mcp_verify(context)
    answering = next((each for each in urls if _answers(each, verify)), "")
    if not answering:
        tried = " or ".join(urls) or context.address
        raise click.ClickException(
            f"No MCP endpoint answers at {tried}, of the context {name}. Name it: toolhub context add {name} --replace "
            "--mcp-url URL with the other options of the context."
        )
    return Hub(answering, _key_of(key) if isinstance(key, ContextKey) else key or "", verify)


def _key_of(key: ContextKey) -> Callable[[], str]:
    """Return the credential for MCP.

    Raises click.ClickException at once, and NoCredential when it is unavailable later.
    """
    own = replace(key, for_mcp=True)
    # Requested once before the first message: so an ended login is reported at once, not to a model later.
    own()

    def now() -> str:
        from toolhub_service.cli.mcp.bridge import NoCredential

        try:
            return own()
        except click.ClickException as missing:
            raise NoCredential(missing.format_message()) from missing

    return now


def _answer_all(problem: str) -> None:
    """Answer until standard input ends: clients show their users answers to requests, and not a program's output."""
    for line in sys.stdin.buffer:
        try:
            request_id = json.loads(line).get("id")
        except (ValueError, AttributeError, RecursionError):
            continue  # no request: no client waits for an answer to it
        if request_id is not None:
            error = {"code": _SERVER_ERROR, "message": problem}
            print_json_line({"jsonrpc": "2.0", "id": request_id, "error": error})


def _target(url: str, settings: Settings) -> str:
    """Return the endpoint to connect to; empty: none is named, and none answers here. Raises click.ClickException."""
    from toolhub_service.cli.mcp.clients import mcp_url

    named = url or _of_address(os.environ.get("TOOLHUB_ADDRESS", ""), settings)
    if named:
        if not _answers(named, _verify()):
            raise click.ClickException(
                f"No hub answers at {named}. Start it, or name its MCP endpoint with --url (TOOLHUB_MCP_URL)."
            )
        return named
    own = mcp_url(settings)
    return own if settings.server.mcp.enabled and _answers(own, _verify()) else ""


def _of_address(address: str, settings: Settings) -> str:
    """Return the endpoint beside a hub's gRPC address; empty for none, and for a socket, which has no host."""
    if not address or address.startswith("unix"):
        return ""
    scheme, _, rest = address.rpartition("://")
    host = rest.rpartition(":")[0] or rest
    is_encrypted = scheme in ("https", "grpcs") or bool(os.environ.get("TOOLHUB_CA_FILE"))
    port = settings.server.mcp.listen.rpartition(":")[2]
    return f"{'https' if is_encrypted else 'http'}://{host}:{port}/mcp"


def _answers(url: str, verify: Any) -> bool:
    import httpx

    try:
        answer = httpx.get(f"{url.removesuffix('/mcp')}/healthz", timeout=_PROBE_S, verify=verify, trust_env=False)
    except httpx.HTTPError:
        return False
    # A proxy may serve no more than /mcp.
    return answer.status_code < 500


def _verify() -> str | bool:
    return os.environ.get("TOOLHUB_CA_FILE") or True


async def _bridge(hub: Hub) -> None:
    from toolhub_service.cli.mcp.bridge import Bridge

    def write(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    await Bridge(hub.url, hub.key, write, hub.verify).run(_lines())


async def _lines() -> AsyncIterator[bytes]:
    reader, loop = asyncio.StreamReader(limit=_LINE_MAX_BYTES), asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, reader.feed_eof)  # clients end a program so, and the hub's session ends with it
    while line := await reader.readline():
        yield line


def _serve_embedded(settings: Settings, api_key: str) -> None:
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # commands are spawned; grpc must not hook into fork
    from toolhub_service.app.start_refusals import refusals, start_refusal
    from toolhub_service.mcp_server.http.listener import is_installed
    from toolhub_service.sandbox.kernel_walls import hide_memory

    if not is_installed():
        raise click.ClickException("No hub is running, and this one cannot speak MCP: toolhub extras install mcp.")
    from toolhub_service.app.embedded import serve_stdio

    hide_memory()
    try:
        asyncio.run(serve_stdio(settings, api_key))
    except refusals() as refused:
        raise click.ClickException(start_refusal(refused, settings)) from refused


@mcp.command("config")
@click.argument("client", type=click.Choice(list(CLIENTS)))
@click.option("--write", is_flag=True, help="Merge it into the client's own file, of which a copy is kept.")
@click.option("--file", type=click.Path(path_type=Path), help="File to use instead of the client's own.")
@click.option("--http", is_flag=True, help="Let the client connect over HTTP instead of starting `toolhub mcp`.")
@click.option("--name", default="tool-hub", help="Name of the hub in the client.")
@_context_option
@settings_options
@click.pass_context
def config_command(
    context: click.Context,
    client: str,
    write: bool,
    file: Path | None,
    http: bool,
    name: str,
    context_name: str | None,
    config_file: Path | None,
    data_dir: Path | None,
) -> None:
    """Print the configuration that CLIENT needs, or write it into its file: for the hub of the current context,
    else for that of this machine. `claude` is Claude Desktop; `claude-code` is written for all projects of the user,
    or with `--file .mcp.json` for one.

    \b
    Examples:
      toolhub mcp config claude
      toolhub mcp config claude-code --write
      toolhub mcp config claude-code --write --file .mcp.json
      toolhub mcp config cursor --context prod --http
      toolhub mcp config vscode --http --write
    """
    form = CLIENTS[client]
    assert context.parent is not None
    above = context.parent.params  # options may stand before `config` too
    config_file, data_dir = config_file or above["config_file"], data_dir or above["data_dir"]
    named = context_name or above["context_name"]
    is_own = not named and bool(config_file or data_dir)
    used = None if is_own else _options_in_use(context if context_name else context.parent, named)
    if used and used["context_name"]:
        from toolhub_service.cli.connection.login import mcp_urls

        chosen = read_contexts().find(used["context_name"])
        entry = entry_of_context(form, used["context_name"], chosen, (mcp_urls(chosen) or [""])[0] if http else "")
    else:
        settings = read_settings(config_file, data_dir)
        entry = entry_of(form, settings, http=http, config_file=config_file, data_dir=data_dir)
    if not write:
        print_text(merge_entry(form, "", name, entry), nl=False)
        print_line(f"# belongs into {file or form.path()}", err=True)
        return
    if form.file is None and file is None:
        raise click.ClickException(f"{client} has no file of its own: name one with --file.")
    try:
        backup = write_entry(form, file or form.path(), name, entry)
    except (OSError, ValueError) as failed:
        raise click.ClickException(f"{file or form.path()}: {failed}. Nothing was changed.") from failed
    print_line(f"Written: {file or form.path()}" + (f" (before: {backup})" if backup else ""))
