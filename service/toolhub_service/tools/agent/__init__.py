"""core/agent.spawn: a model that the operator has configured works on a task."""
