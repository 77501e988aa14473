"""`build_tool` makes a tool from a description `{type, name, config}`, which is checked before anything is imported.

    build_tool({"type": "database_query", "name": "acme/sales.query", "config": {"connection": "sales"}}, parts)

The built-in types are tools of the hub under a new name, with some of their parameters fixed; the type `custom` is a
class of a trusted module. Their guards stay the same, and policy is evaluated for the new name as for any other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from toolhub_service.adapters.core import AnyTool
from toolhub_service.adapters.custom import LoadRefused, import_trusted, make_tool
from toolhub_service.domain.json import JsonValue
from toolhub_service.sandbox.confinement import Confinement
from toolhub_service.tools.database.connection import Database
from toolhub_service.tools.database.db_tools import DbQuery
from toolhub_service.tools.exec_run import ExecRun
from toolhub_service.tools.files.write import Copy

Value = TypeVar("Value")


class Parts(msgspec.Struct, frozen=True):
    """What the built-in types are made of."""

    databases: Sequence[Database] = ()
    """The configured databases; `database_query` names one of them."""
    bubblewrap: str | None = ""
    """Path of bubblewrap; empty: search for it; None: do not use it."""
    trusted_namespaces: Collection[str] = ()
    """Packages that the type `custom` may import from."""


class _Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `config` of a description: unknown keys are refused."""


class _NoConfig(_Config, frozen=True):
    """For types without configuration."""


class _DatabaseQueryConfig(_Config, frozen=True):
    connection: Annotated[str, Meta(min_length=1)]


_FixedConnection = Annotated[str, Meta(description="The only connection of this tool; may be left out.", max_length=64)]


class _CustomConfig(_Config, frozen=True, rename={"class_name": "class"}):
    module: str
    class_name: str
    args: dict[str, JsonValue] = {}


class ToolDescription(Struct, frozen=True, forbid_unknown_fields=True):
    """One tool to build."""

    type: str
    """`bash`, `file_copy`, `database_query` or `custom`."""
    name: str = ""
    """`namespace/path.verb`; empty only for `custom`, whose class has a name."""
    config: dict[str, Any] = {}


def build_tool(description: ToolDescription | Mapping[str, Any], parts: Parts) -> AnyTool:
    """Return the tool, not yet registered. Raises LoadRefused, whose message says what to correct; for `custom` also
    any exception of the module or the constructor."""
    if isinstance(description, ToolDescription):
        described = description
    else:
        described = _convert_or_refuse(description, ToolDescription, "the description")
    if described.type not in _TYPES:
        raise LoadRefused(f"`type` must be one of {', '.join(_TYPES)}")
    config_type, make = _TYPES[described.type]
    if not described.name and config_type is not _CustomConfig:
        raise LoadRefused("`name` is missing: give one such as acme/sales.query")
    tool = make(_convert_or_refuse(described.config, config_type, "`config`"), parts)
    if described.name and described.name != tool.name:
        # The name is an attribute of the class (`ClassVar`): a subclass renames this tool only and not all of its type.
        tool.__class__ = type(type(tool).__name__, (type(tool),), {"name": described.name})
    return tool


def _convert_or_refuse(value: Mapping[str, Any], kind: type[Value], what: str) -> Value:
    try:
        return msgspec.convert(dict(value), kind)
    except msgspec.ValidationError as error:
        raise LoadRefused(f"{what} is invalid: {error}") from None


def _database_query(config: _DatabaseQueryConfig, parts: Parts) -> AnyTool:
    named = [database for database in parts.databases if database.terms.name == config.connection]
    if not named:
        known = ", ".join(database.terms.name for database in parts.databases) or "none is configured"
        raise LoadRefused(f"`config.connection` must name a database of the configuration: {known}")
    # A call need not name the one connection that there is: `{query, limit}`.
    fields = [("connection", _FixedConnection, config.connection)]
    given = msgspec.defstruct("In", fields, bases=(DbQuery.In,), frozen=True, kw_only=True, rename="camel")
    of_one = type("DbQuery", (DbQuery,), {"In": given})
    tool: AnyTool = of_one(named)
    return tool


def _custom(config: _CustomConfig, parts: Parts) -> AnyTool:
    found = import_trusted(f"{config.module}:{config.class_name}", parts.trusted_namespaces)
    return make_tool(found, config.args)


_TYPES: Final[dict[str, tuple[type[_Config], Callable[[Any, Parts], AnyTool]]]] = {
    "bash": (_NoConfig, lambda _, parts: ExecRun(Confinement(parts.bubblewrap))),
    "file_copy": (_NoConfig, lambda _, __: Copy()),
    "database_query": (_DatabaseQueryConfig, _database_query),
    "custom": (_CustomConfig, _custom),
}
