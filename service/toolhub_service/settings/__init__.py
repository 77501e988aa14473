"""Every knob of the hub: document.py says which there are, loading.py where their values come from."""
