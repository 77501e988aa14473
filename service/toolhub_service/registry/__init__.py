"""The tools that exist: their catalog, how they are listed, found and exported."""
