"""Faces: the names, arguments and answers of older tool sets, mapped by tables onto the hub's own tools."""
