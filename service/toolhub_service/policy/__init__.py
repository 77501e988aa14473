"""Policy: grants, rules, conditions, constraints; a snapshot and a call in, a verdict out. No I/O.

Read decide.py first: `PolicySnapshot.decide` judges one call. table.py computes which rules concern a principal and a
tool, conditions.py evaluates their `when:`, arguments.py checks guarded arguments. document.py declares policy.yaml.
"""
