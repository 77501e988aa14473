"""Masks: known values out of a definition, and nothing else."""

from __future__ import annotations

import base64
import json

from toolhub_service.domain.json import JsonObject
from toolhub_service.guards.masking import Mask

SECRET = "s3cret-of-this-source"


def test_every_spelling_of_a_value_is_hidden_in_names_and_values_of_all_levels() -> None:
    encoded = base64.b64encode(f"me:{SECRET}".encode()).decode()
    value: JsonObject = {"a": [{"b": f"x {SECRET} y", SECRET: encoded}], "n": [1, None, True, 2.5]}

    shown = Mask([SECRET]).object(value)

    assert shown["n"] == [1, None, True, 2.5]
    assert json.dumps(shown["a"]).startswith('[{"b": "x *** y"')
    assert SECRET not in json.dumps(shown)
    assert encoded not in json.dumps(shown)


def test_what_only_reads_like_a_secret_is_left_alone() -> None:
    schema = {"properties": {"password": {"type": "string", "default": "Bearer abcdef0123456789"}}}

    assert Mask([SECRET]).object(schema) == schema
    assert not Mask([SECRET]).finds(json.dumps(schema).encode())


def test_an_empty_mask_finds_nothing() -> None:
    assert not Mask().finds(b"anything")
    assert Mask().text("anything") == "anything"
