"""Decides a call again, once the database has said what its SQL touches.

Step 4 decides by what a parser found in the text. Before the statement runs, the database names the tables, actions and
functions itself: also those below a view, of a rule, a trigger or a foreign key, and whatever the parser read
differently. The same policy then decides by these; a plan or an approval that the call already has still counts.
"""

from __future__ import annotations

from typing import Final

from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.ports import PolicySource
from toolhub_service.domain.statement import Statement
from toolhub_service.domain.verdict import Effect, Verdict

_SHOWN: Final = 12
_WANTS: Final = {Effect.REQUIRE_APPROVAL: "an approval", Effect.REQUIRE_PLAN: "a plan"}


def decide_statement(policy: PolicySource, call: GrantedCall, statement: Statement) -> None:
    """Raises ToolFailure POLICY_DENIED where the policy does not allow the call with this statement."""
    verdict = policy.decide(call.planned._replace(statement=statement))
    if verdict.effect is Effect.ALLOW:
        return
    # The verdict that was granted has the rule to which a plan or a person has already agreed.
    if verdict.effect is not Effect.DENY and verdict.rule_id == call.verdict.rule_id:
        return
    raise refuse(
        ErrorKind.POLICY_DENIED,
        f"The database says that the statement touches {_list_tables(statement)}. {_reason(verdict)}",
        rule_id=verdict.rule_id,
        policy_revision=verdict.policy_revision,
        statement_class=statement.kind,
        tables=list(statement.tables[:_SHOWN]),
    )


def _list_tables(statement: Statement) -> str:
    shown = [*statement.tables[:_SHOWN]]
    if more := len(statement.tables) - _SHOWN:
        shown += [f"{more} more"] if more > 0 else []
    return f"{', '.join(shown) or 'no table'} ({', '.join(statement.actions)})"


def _reason(verdict: Verdict) -> str:
    if verdict.effect is Effect.DENY:
        return f"{verdict.reason} {verdict.remedy}".strip()
    return (
        f"For that the rule {verdict.rule_id} wants {_WANTS[verdict.effect]}, which was not asked for the statement as "
        "it is written. Name these tables and actions in the statement itself, or do without them."
    )
