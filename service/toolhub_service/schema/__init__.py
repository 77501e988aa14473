"""JSON and JSON Schema: read strictly, compile once, validate fast, fill defaults, say what to repair.

`strict_json` reads and `canonical_json` writes; `compiled` validates values by schemas that `references` and
`work_bound` have found harmless, and refuses other schemas; `violations` describes errors in words for a model;
`defaults` completes arguments; `tool_schemas.for_tool` combines both for one tool.
"""
