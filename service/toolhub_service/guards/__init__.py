"""Pure checks of what may be dangerous: paths, URLs, commands, SQL, secrets, text from outside.

Policy decides with the same functions with which tools enforce.
"""
