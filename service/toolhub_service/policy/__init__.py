"""Policy: grants, rules, conditions, constraints; a snapshot and a call in, a verdict out. No I/O."""
