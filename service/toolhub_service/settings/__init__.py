"""All settings of the hub: document.py declares them, loading.py reads them from one file and the environment."""
