"""The layers around every RPC; app/wiring/server.py puts them in order."""
