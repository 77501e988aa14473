"""The layers around every RPC; app/wiring_server.py puts them in order."""
