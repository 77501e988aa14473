"""Starting and confining programs: processes, kernel restrictions, levels of confinement."""
