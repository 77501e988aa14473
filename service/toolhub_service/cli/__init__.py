"""The command line, one file a command group. Client commands speak to a hub over gRPC like any other caller.

Shared modules: root.py has the groups, connection/client.py the connection and its errors, config.py the settings,
terminal/output.py what is printed and the exit code, terminal/arguments.py the arguments of a call, completion.py what
a shell completes.
"""
