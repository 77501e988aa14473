"""The command line, one file a command group. Client commands speak to a hub over gRPC like any other caller.

Shared modules: root.py has the groups, client.py the connection and its errors, config.py the settings, output.py what
is printed and the exit code, arguments.py the arguments of a call, completion.py what a shell completes.
"""
