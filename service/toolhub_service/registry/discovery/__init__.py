"""How tools of sources are read, compared with their pins and published."""
