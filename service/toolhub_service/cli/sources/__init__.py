"""`toolhub sources`, `pins` and `workflows`: where tools come from."""
