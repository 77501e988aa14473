"""The files of a hub's configuration: where they lie, who may write them, and how they are edited and followed."""
