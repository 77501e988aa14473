"""The nine steps, in their one order. The value is used everywhere: file, span, metric label, audit field."""

from __future__ import annotations

from enum import Enum


class StepName(Enum):
    RESOLVE = "resolve"
    VALIDATE_INPUT = "validate_input"
    APPLY_DEFAULTS = "apply_defaults"
    CHECK_POLICY = "check_policy"
    TAKE_BUDGET = "take_budget"
    EXECUTE = "execute"
    VALIDATE_OUTPUT = "validate_output"
    ATTACH_EVIDENCE = "attach_evidence"
    RECORD = "record"

    __hash__ = object.__hash__
    """By identity, for a member is a singleton: Enum's own hash is Python code, and this is a key on every call."""
