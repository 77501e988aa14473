"""Settings of tools that work only where an operator has configured something: channels, endpoints, connections."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from toolhub_service.sections.source_config import SecretRef, Section, Value, secrets_of_url

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]


class Agent(Section, frozen=True):
    """A model that core/agent.spawn gives tasks to."""

    name: Annotated[Name, Meta(description="How models name it.")]
    url: Annotated[
        str,
        Meta(
            description="Base of an OpenAI-compatible endpoint, such as https://api.example.com/v1.",
            pattern="^https?://",
        ),
    ]
    model: Annotated[str, Meta(description="Model that is asked.", min_length=1)]
    key: Annotated[
        SecretRef | None, Meta(description="API key: `{env: VARIABLE}` or `{file: PATH}`; unset: none is sent.")
    ] = None
    max_steps: Annotated[int, Meta(description="Answers of the model for one task at most.", ge=1, le=200)] = 20
    max_calls: Annotated[int, Meta(description="Calls of tools for one task at most.", ge=0, le=1_000)] = 50
    max_tokens: Annotated[int, Meta(description="Tokens of one answer at most.", ge=1, le=1_000_000)] = 4_096
    max_depth: Annotated[
        int, Meta(description="Agents that may work for one another; 1: what it calls can spawn none.", ge=1, le=3)
    ] = 1
    stall_s: Annotated[float, Meta(description="Seconds for which the endpoint may send nothing.", gt=0, le=600)] = 60.0
    system: Annotated[str, Meta(description="What the model is told besides the task; empty: the hub's own words.")] = (
        ""
    )
    parameters: Annotated[
        dict[str, str | int | float | bool], Meta(description="Members of each request, such as temperature.")
    ] = msgspec.field(default_factory=dict)


class Channel(Section, frozen=True):
    """Where core/media.send may send to."""

    name: Annotated[Name, Meta(description="How models name it.")]
    # Always a reference: Apprise puts the password or token of a service into its URL.
    url: Annotated[
        SecretRef,
        Meta(description="Apprise URL, a secret: `{env: VARIABLE}` or `{file: PATH}`, such as `mailtos://…`."),
    ]
    attachments: Annotated[bool, Meta(description="Whether files may be sent.")] = True
    extensions: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[a-z0-9]{1,10}$")], ...],
        Meta(description="Types of files that may be sent, such as `pdf`; empty: the built-in list of 27."),
    ] = ()


# core/web.search


class WebSearch(Section, frozen=True):
    provider: Annotated[
        Literal["", "brave", "searxng"], Meta(description="What core/web.search asks; empty: it is UNAVAILABLE.")
    ] = ""
    base_url: Annotated[
        str,
        Meta(
            description="http:// or https:// base of the SearXNG server, which may be private; for brave an address "
            "that speaks its API, empty: Brave's own."
        ),
    ] = ""
    api_key_env: Annotated[
        str, Meta(description="Environment variable with the API key of brave; the key itself is no setting.")
    ] = "BRAVE_API_KEY"
    api_key_file: Annotated[str, Meta(description="File with the API key of brave, instead of the variable.")] = ""


class Web(Section, frozen=True):
    search: WebSearch = WebSearch()


class Faces(Section, frozen=True):
    enabled: Annotated[
        tuple[Literal["countbot", "local-tools"], ...],
        Meta(description="Older sets of tools under whose names calls may be made (docs/faces.md)."),
    ] = ("countbot", "local-tools")
    countbot_tools: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}=[^=/]+/[^=]+$")], ...],
        Meta(description="Further tools of the face countbot, `my_tool=acme/my_tool` each; arguments as they are."),
    ] = ()


# core/memory.*


class Memory(Section, frozen=True):
    file: Annotated[
        str,
        Meta(description="SQLite file of what agents remember, with stores.kind sqlite; empty: <data_dir>/memory.db."),
    ] = ""
    max_items: Annotated[int, Meta(description="Items that one principal may keep.", ge=1, le=10_000_000)] = 100_000
    max_bytes: Annotated[int, Meta(description="Total bytes of the items of one principal.", ge=1)] = 64 * 1024 * 1024
    max_item_chars: Annotated[int, Meta(description="Longest text of one item, characters.", ge=1, le=50_000)] = 8_000
    ttl_s: Annotated[
        float,
        Meta(
            description="Seconds for which an item is kept at most, and where it asks for no time; 0: for ever.", ge=0
        ),
    ] = 31_536_000.0


# core/db.*


class DatabaseSettings(Section, frozen=True):
    """One entry of `databases`: a database that core/db.* reach by its name."""

    name: Annotated[Name, Meta(description="How models name it.")]
    description: Annotated[str, Meta(description="What is in it, for models.", max_length=2_000)] = ""
    file: Annotated[str, Meta(description="SQLite file; either this or url.")] = ""
    url: Annotated[
        Value,
        Meta(
            description="PostgreSQL: `postgresql://user@host:5432/database`; with a password only as a reference, "
            "`{env: VARIABLE}` or `{file: PATH}`."
        ),
    ] = ""
    read_only: Annotated[bool, Meta(description="false: for core/db.execute, with a role of its own.")] = True
    schema: Annotated[
        str, Meta(description="PostgreSQL: where names without a schema are looked up.", min_length=1, max_length=63)
    ] = "public"
    tables: Annotated[
        tuple[str, ...],
        Meta(
            description="Globs over `schema.table` (PostgreSQL) or `table` (SQLite) that may be used; empty: all but "
            "the database's own catalog."
        ),
    ] = ()
    functions: Annotated[
        tuple[str, ...], Meta(description="Functions that may be called besides the built-in list; lower case.")
    ] = ()
    timeout_s: Annotated[float, Meta(description="Longest time of a statement.", gt=0, le=3_600)] = 30.0
    max_rows: Annotated[int, Meta(description="Rows of one result, with those in its artifact.", ge=1)] = 100_000
    max_bytes: Annotated[
        int, Meta(description="Bytes of the values of one result, with those in its artifact.", ge=1_024)
    ] = 64 * 1024 * 1024
    max_cost: Annotated[
        float, Meta(description="PostgreSQL: highest cost of a query by the server's estimate; 0: any.", ge=0)
    ] = 0.0
    export: Annotated[
        Literal["csv", "jsonl", "parquet"],
        Meta(description="Format of the artifact of a cut result; parquet: with the extra `parquet`."),
    ] = "csv"

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if bool(self.file) == bool(self.url):
            raise ValueError(f"database {self.name}: give either file (SQLite) or url (PostgreSQL)")
        # The settings file is no place for secrets: it is copied, shown and put under version control.
        if isinstance(self.url, str) and any(secrets_of_url(self.url)):
            raise ValueError(
                f"database {self.name}: its url holds a password: put the url into a file or a variable and refer to "
                "it, as `url: {file: PATH}` or `url: {env: VARIABLE}`"
            )


# core/program.run


class Programs(Section, frozen=True):
    """Bounds of one program; policy and the caller's own budget can only be narrower."""

    workers: Annotated[int, Meta(description="Programs that run at once per process.", ge=1, le=256)] = 8
    memory_bytes: Annotated[int, Meta(description="Memory of one program.", ge=1_000_000, le=10_000_000_000)] = (
        100_000_000
    )
    cpu_s: Annotated[float, Meta(description="Processor time of one program, seconds.", gt=0, le=3_600)] = 30.0
    wall_s: Annotated[
        float, Meta(description="Time of one program in all, its calls included, seconds.", gt=0, le=86_400)
    ] = 600.0
    calls_max: Annotated[int, Meta(description="Calls that one program may make.", ge=0, le=1_000)] = 50
    code_bytes: Annotated[int, Meta(description="Length of one program.", ge=1, le=1_000_000)] = 65_536
    result_bytes: Annotated[
        int, Meta(description="Value of a program as JSON; a larger one becomes an artifact.", ge=1)
    ] = 1_048_576
    printed_bytes: Annotated[int, Meta(description="What is kept of what a program prints.", ge=0)] = 65_536


# core/web.screenshot and core/desktop.screenshot


class Browser(Section, frozen=True):
    executable: Annotated[
        str, Meta(description="Chromium or Chrome, a path or a name; empty: searched for on the path.")
    ] = ""
    sandbox: Annotated[
        Literal["auto", "required", "off"],
        Meta(description="Chromium's own sandbox; auto: on, but not for root; required: no picture without it."),
    ] = "auto"  # Chromium refuses to sandbox itself as root, as a container's main process often runs


class Sandbox(Section, frozen=True):
    user: Annotated[
        int,
        Meta(
            description="User id, and group id, of the processes of skills and programs where the hub is root.",
            ge=1,
            le=4_294_967_294,
        ),
    ] = 65_534


class Skills(Section, frozen=True):
    python: Annotated[
        str,
        Meta(
            description="Interpreter of skills' scripts, such as that of an environment with the packages they need; "
            "empty: the hub's own."
        ),
    ] = ""


class Desktop(Section, frozen=True):
    display: Annotated[str, Meta(description="X display, such as `:0`; empty: DISPLAY of the hub's environment.")] = ""
