"""All settings of the hub: document.py declares them, loading.py reads their values."""
