"""ComfyUI: a template (a graph and a sidecar that declares its arguments) as a tool, run as a job.

    template.py       the sidecar, and the tool that it makes from a graph
    loading.py        sidecars and graphs from files and folders
    building.py       a sidecar and its graph, validated together
    graph.py          a graph, validated alone
    node_classes.py   a template, checked against what a server reports
    workflows.py      what `toolhub workflows` checks and drafts

    adapter.py        step 6, and the parts of a source
    job.py            one prompt: started, found, followed, stopped, collected
    submitting.py     sends it, and finds one that may have been sent
    arguments.py      what may be bound, and the graph that is sent
    backends.py       the servers of a source, and which of them gets a prompt
    states.py         the state of a prompt, from jobs, history and queue
    event_feed.py     hints from the WebSocket
    outputs.py        outputs of a run, fetched and stored; metadata.py removes the graph that is written into pictures
    client.py         HTTP to one server
    failures.py       failures of jobs

kind.py is the section of sources.yaml, and source.py reads templates and servers.
"""
