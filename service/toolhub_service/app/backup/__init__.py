"""`toolhub backup` and `toolhub restore`: the data folder at one moment, taken while hubs go on writing it."""
