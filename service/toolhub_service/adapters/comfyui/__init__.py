"""ComfyUI: a template (a graph and a sidecar that declares its arguments) as a tool, run as a job.

    workflow/template.py       the sidecar, and the tool that it makes from a graph
    workflow/loading.py        sidecars and graphs from files and folders
    workflow/building.py       a sidecar and its graph, validated together
    workflow/graph.py          a graph, validated alone
    workflow/node_classes.py   a template, checked against what a server reports
    workflow/workflows.py      what `toolhub workflows` checks and drafts
    workflow/arguments.py      what may be bound, and the graph that is sent

    adapter.py          step 6, and the parts of a source
    job.py              one prompt: started, found, followed, stopped, collected
    submitting.py       sends it, and finds one that may have been sent
    backends.py         the servers of a source, and which of them gets a prompt
    states.py           the state of a prompt, from jobs, history and queue
    event_feed.py       hints from the WebSocket
    files/outputs.py    outputs of a run, fetched and stored
    files/metadata.py   removes the graph that is written into pictures
    client.py           HTTP to one server
    failures.py         failures of jobs

kind.py is the section of sources.yaml, and source.py reads templates and servers.
"""
