"""Which alternative of anyOf or oneOf was most likely meant (the idea of `best_match` in python-jsonschema).

1. A tag: when branches fail on `const` or `enum` of one of the value's own properties, those whose tag fits are
   meant; when no branch's tag fits, the tag itself is what is wrong.
2. When every branch wants another type, the types are what is wrong.
3. Otherwise the branch with the fewest errors, and among equals the one that got deepest.
"""

from __future__ import annotations

from typing import Any, Final

import jsonschema_rs
import msgspec

from toolhub_service.domain.errors.failure import Violation
from toolhub_service.domain.json import JsonValue
from toolhub_service.schema.rules import Rule, listing, nearest, null_last, pointer, subject, type_hint

_Errors = list[jsonschema_rs.ValidationError]
_TAGS: Final = (jsonschema_rs.ValidationErrorKind.Constant, jsonschema_rs.ValidationErrorKind.Enum)


class LikeliestBranch(msgspec.Struct, frozen=True):
    """The errors of the branch that was most likely meant."""

    errors: _Errors


class Branches:
    """The failed branches of one anyOf or oneOf; a branch is the list of its errors."""

    def __init__(self, error: jsonschema_rs.ValidationError, branches: list[_Errors], root: dict[str, Any]) -> None:
        self._rule = Rule(error, root)
        self._keyword = error.kind.name
        self._branches = branches
        self._depth = len(error.instance_path)

    def likeliest(self) -> LikeliestBranch | Violation:
        fitting = [branch for branch in self._branches if not self._tag_errors(branch)]
        if not fitting:
            return self._wrong_tag()
        typed = [branch for branch in fitting if self._wanted_types(branch) is None]
        if typed:
            return LikeliestBranch(min(typed, key=lambda branch: (len(branch), -_reach(branch))))
        return self._wrong_type(fitting)

    def _tag_errors(self, branch: _Errors) -> _Errors:
        depth = self._depth + 1
        return [error for error in branch if len(error.instance_path) == depth and isinstance(error.kind, _TAGS)]

    def _wrong_tag(self) -> LikeliestBranch | Violation:
        """Return the violation of the one tag property when no branch's tag fits; the likeliest branch when tags
        differ."""
        first = [self._tag_errors(branch)[0] for branch in self._branches]
        if len({tuple(error.instance_path) for error in first}) != 1:
            return LikeliestBranch(min(self._branches, key=lambda branch: (len(branch), -_reach(branch))))
        rule = Rule(first[0], {})
        options = [option for error in first for option in accepted_values(error)][:20]
        guess = None if rule.secret or isinstance(rule.value, dict | list) else nearest(rule.value, options)
        return Violation(
            path=pointer(rule.path),
            keyword=self._keyword,
            message=f"{subject(rule.path)} must be one of {listing(options)}, not {rule.got()}.",
            expected=options,
            hint="" if guess is None else f"Did you mean {listing([guess])}?",
        )

    def _wanted_types(self, branch: _Errors) -> list[str] | None:
        for error in branch:
            kind = error.kind
            if isinstance(kind, jsonschema_rs.ValidationErrorKind.Type) and len(error.instance_path) == self._depth:
                return kind.types
        return None

    def _wrong_type(self, branches: list[_Errors]) -> Violation:
        types = null_last(list(dict.fromkeys(name for branch in branches for name in self._wanted_types(branch) or ())))
        expected: JsonValue = list(types)
        return Violation(
            path=pointer(self._rule.path),
            keyword=self._keyword,
            message=f"{subject(self._rule.path)} must be {' or '.join(types)}, not {self._rule.got()}.",
            expected=expected,
            hint=type_hint(self._rule, types),
        )


def accepted_values(error: jsonschema_rs.ValidationError) -> list[Any]:
    facts = error.kind.as_dict()
    return [facts["expected_value"]] if "expected_value" in facts else list(facts["options"])


def _reach(branch: _Errors) -> int:
    return max((len(error.instance_path) for error in branch), default=0)
