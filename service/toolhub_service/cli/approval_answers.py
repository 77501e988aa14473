"""Answers to what a tool asks in the middle of a call: from the command line, or field by field on a terminal.

What stands in a question is the tool's own words. The hub judges the answer; here it is only given its types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from toolhub.v1 import approval_pb2
from toolhub_service.cli.arguments import read_arguments
from toolhub_service.cli.output import revealed

_NOTHING: Final = ""
_TEXT: Final = "string"


def schema_of(approval: approval_pb2.Approval) -> Mapping[str, Any]:
    """What the answer must fit; empty when nothing is asked."""
    schema = json.loads(approval.question.schema_json or b"{}")
    return schema if isinstance(schema, dict) else {}


def fields_of(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What is asked for, by name."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: declared if isinstance(declared, dict) else {} for name, declared in properties.items()}


def given_answer(words: Sequence[str], document: str, schema: Mapping[str, Any]) -> bytes:
    """The answer of the command line, as JSON; empty when there is none. Raises click.UsageError."""
    if words and document:
        raise click.UsageError("--answer and --answer-json exclude each other")
    if document:
        return read_arguments([document], schema)
    return read_arguments(words, schema) if words else b""


def asked_answer(schema: Mapping[str, Any]) -> bytes:
    """The answer of a person at the terminal; what may be left out is, by an empty line."""
    answer: dict[str, Any] = {}
    required = schema.get("required", ())
    for name, declared in fields_of(schema).items():
        said = _ask(name, declared, is_required=name in required)
        if said != _NOTHING:
            answer[name] = _typed(said, declared)
    return json.dumps(answer).encode() if answer else b""


def describe_field(name: str, declared: Mapping[str, Any], *, is_required: bool) -> str:
    """One line, such as `colour (string, required): red | green`."""
    terms = [_kind(declared), "required" if is_required and "default" not in declared else "optional"]
    if "default" in declared:
        terms.append(f"default {json.dumps(declared['default'], ensure_ascii=False)}")
    choices = " | ".join(_choices(declared))
    told = " – ".join(str(part) for part in (declared.get("description"), choices) if part)
    return revealed(f"{name} ({', '.join(terms)})" + (f": {told}" if told else ""))


def _ask(name: str, declared: Mapping[str, Any], *, is_required: bool) -> str:
    """What was typed; empty for nothing, which leaves a default to the hub."""
    choices = _choices(declared)
    may_be_left_out = not is_required or "default" in declared
    label = describe_field(name, declared, is_required=is_required)
    is_hidden = declared.get("format") == "password"
    while True:
        said: str = click.prompt(label, default=_NOTHING, show_default=False, hide_input=is_hidden, err=True)
        if said == _NOTHING and not may_be_left_out:
            click.echo("This one is needed.", err=True)
        elif said != _NOTHING and choices and said not in choices:
            click.echo(f"One of: {revealed(', '.join(choices))}", err=True)
        else:
            return said


def _typed(said: str, declared: Mapping[str, Any]) -> Any:
    if _kind(declared) == _TEXT:
        return said
    try:
        return json.loads(said)
    except ValueError:
        return said  # the hub's own message is better than ours


def _kind(declared: Mapping[str, Any]) -> str:
    """The type as it is declared; text where nothing is, or where there are several of which text is one."""
    kind = declared.get("type", _TEXT)
    if isinstance(kind, list):
        return _TEXT if _TEXT in kind else "/".join(str(each) for each in kind)
    return str(kind)


def _choices(declared: Mapping[str, Any]) -> list[str]:
    enum = declared.get("enum")
    return [each if isinstance(each, str) else json.dumps(each) for each in enum] if isinstance(enum, list) else []
