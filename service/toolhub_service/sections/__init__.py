"""Types that sources.yaml and the hub's settings share: sections, common keys, references to secrets.

The settings themselves are in settings/.
"""
