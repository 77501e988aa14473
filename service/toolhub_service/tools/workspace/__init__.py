"""A call's folder: opening, walking, reading and writing below it, whatever other processes do."""
