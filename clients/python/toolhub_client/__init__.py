"""A thin asyncio client of tool-hub."""
