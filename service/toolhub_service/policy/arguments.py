"""Guarded arguments, checked before the tool runs by the same functions with which tools enforce at I/O time.

A tool declares what its arguments mean (`ToolSpec.guarded`); absent and null values are not checked, arrays are checked
per item.
"""

from __future__ import annotations

import posixpath

import msgspec

from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.statement import Statement
from toolhub_service.domain.tool import ArgumentRole, GuardedArgument
from toolhub_service.domain.verdict import Constraints
from toolhub_service.guards.commands.check import argv_of, check_command
from toolhub_service.guards.paths import check_path
from toolhub_service.guards.sql.check import check_sql, find_database, read_sql
from toolhub_service.guards.urls import check_url

PATH_GUARD = "guard:path"
EGRESS_GUARD = "guard:egress"
COMMAND_GUARD = "guard:command"
OVERWRITE_GUARD = "guard:overwrite"
SQL_GUARD = "guard:sql"

RULE_IDS = {
    ArgumentRole.PATH_READ: PATH_GUARD,
    ArgumentRole.PATH_WRITE: PATH_GUARD,
    ArgumentRole.WORKING_DIRECTORY: PATH_GUARD,
    ArgumentRole.URL: EGRESS_GUARD,
    ArgumentRole.METHOD: EGRESS_GUARD,
    ArgumentRole.COMMAND: COMMAND_GUARD,
    ArgumentRole.SQL: SQL_GUARD,
}


class GuardRefusal(msgspec.Struct, frozen=True):
    """The guard that refused, the argument that it refused, and its error."""

    rule_id: str
    argument: str
    error: ToolError


def check_arguments(planned: PlannedCall, constraints: Constraints) -> GuardRefusal | None:
    """Return the first refusal in the tool's order of arguments, or None when every guard accepts."""
    for argument in planned.spec.guarded:
        refusal = check_argument(planned, argument, constraints)
        if refusal is not None:
            return refusal
    return None


def check_argument(planned: PlannedCall, argument: GuardedArgument, constraints: Constraints) -> GuardRefusal | None:
    """Return the refusal of one argument's guard; None when it accepts or there is nothing to check."""
    value = planned.args.get(argument.name)
    if value is None:
        return None
    role = argument.role
    if (
        role is ArgumentRole.PATH_WRITE
        and not constraints.sandbox.may_overwrite
        # `is True`: step 2 has validated the argument against its schema, so nothing else means yes.
        and planned.args.get("overwrite") is True
    ):
        message = "Overwriting is not allowed here: leave out `overwrite` and write to a new path."
        refusal = ToolError(ErrorKind.POLICY_DENIED, message, details={"argument": "overwrite"})
        return GuardRefusal(OVERWRITE_GUARD, "overwrite", refusal)
    try:
        check_one_value(planned, role, value, constraints)
    except ToolFailure as failure:
        return GuardRefusal(RULE_IDS[role], argument.name, failure.error)
    return None


def method_of(planned: PlannedCall) -> str:
    """Return the HTTP method that the call requests; GET where the tool has no such argument."""
    return str(argument_of(planned, ArgumentRole.METHOD) or "GET").upper()


def argument_of(planned: PlannedCall, role: ArgumentRole) -> JsonValue:
    """Return the value of the first argument with that role that is given; None when there is none."""
    for argument in planned.spec.guarded:
        if argument.role is role and (value := planned.args.get(argument.name)) is not None:
            return value
    return None


def texts(value: JsonValue) -> list[str]:
    """Return one string or an array of strings as a list. Raises ToolFailure INVALID_INPUT."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return [str(item) for item in value]
    raise refuse(ErrorKind.INVALID_INPUT, "Give a string, or an array of strings where the tool takes several.")


def words(command: JsonValue) -> list[str]:
    """Return the argument of role COMMAND as argv. Raises ToolFailure INVALID_INPUT."""
    return argv_of(command) if isinstance(command, str) else texts(command)


def check_one_value(planned: PlannedCall, role: ArgumentRole, value: JsonValue, constraints: Constraints) -> None:
    if role is ArgumentRole.URL:
        method = method_of(planned)
        for url in texts(value):
            check_url(url, method, constraints.egress)
    elif role is ArgumentRole.COMMAND:
        _check_command(planned, value, constraints)
    elif role is ArgumentRole.SQL:
        terms = find_database(planned.args.get("connection"), planned.spec.databases)
        # Whether it may write depends on the tool, not on the statement: core/db.query never writes.
        check_sql(" ".join(texts(value)), terms, writes=not planned.spec.annotations.read_only)
    elif role is not ArgumentRole.METHOD:  # an egress rule names the method, so both are checked with the URL
        for path in texts(value):
            check_path(path)


def _check_command(planned: PlannedCall, value: JsonValue, constraints: Constraints) -> None:
    checked = check_command(words(value), constraints.commands, constraints.denied_commands)
    folder = argument_of(planned, ArgumentRole.WORKING_DIRECTORY)
    for path in checked.paths:
        # join keeps an absolute path absolute, and the guard refuses it
        check_path(posixpath.join(folder, path) if isinstance(folder, str) else path)


def statement_of(planned: PlannedCall) -> Statement | None:
    """Return the call's SQL, checked or not; None without any, and where it cannot be parsed, which its guard
    refuses."""
    if planned.statement is not None:
        return planned.statement
    value = argument_of(planned, ArgumentRole.SQL)
    if not isinstance(value, str):
        return None
    try:
        return read_sql(value, find_database(planned.args.get("connection"), planned.spec.databases))
    except ToolFailure:
        return None
