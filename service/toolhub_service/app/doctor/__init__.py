"""Checks of machine, configuration and stored files for `toolhub doctor`: each looks, changes nothing, never raises."""
