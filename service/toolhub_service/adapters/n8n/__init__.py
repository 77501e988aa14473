"""Workflows of n8n servers as tools. How one is called, file by file:

    adapter.py     step 6: is it answered at once, or a job?
    calling.py     answered at once: one call of a workflow to its end, and look-ups where the answer is unclear
    job.py         a job: the answer names an execution, which is followed, stopped and collected
    server.py      the one request that starts a workflow: to its production webhook, with the idempotency key
    api.py         requests to n8n's public API: executions by id or by key, stop, workflows
    client.py      HTTP for both of them, to this server only

What they read is in workflow.py (workflows and their webhooks), execution.py (results, errors, keys) and answers.py
(what a webhook answered); their failures are in failures.py. kind.py is the section of sources.yaml, source.py finds
the workflows, definitions.py makes tools from them.
"""
