"""JSON and JSON Schema: read strictly, compile once, validate fast, fill defaults, say what to repair.

`strict_json` reads and `canonical_json` writes; `compiled` judges values by schemas that `references` and `work_bound`
have found harmless, and refuses the others (`references`); `violations` says what is wrong in words for a model;
`defaults` completes arguments; its `for_tool` puts both together for one tool.
"""
