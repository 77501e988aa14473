"""ComfyUI: a template (a graph and a sidecar that declares its arguments) as a tool, run as a job.

    template.py       the sidecar and what it makes of a graph
    loading.py        sidecars and graphs from files and folders
    building.py       a sidecar and its graph, judged together
    graph.py          a graph, judged alone
    node_classes.py   a template, held to what a server knows
    workflows.py      what `toolhub workflows` checks and drafts

    adapter.py        step 6; a source put together
    job.py            one prompt: started, found, followed, stopped, collected
    submitting.py     sends it, and finds one that may have been sent
    arguments.py      what may be bound, and the graph that is sent
    backends.py       the servers of a source, and which of them gets a prompt
    states.py         the state of a prompt, from jobs, history and queue
    event_feed.py     hints from the WebSocket
    outputs.py        what a run made, fetched and kept, by metadata.py without the graph that is written into pictures
    client.py         HTTP to one server
    failures.py       what went wrong, in the hub's words

kind.py is the section of sources.yaml, and source.py reads templates and servers.
"""
