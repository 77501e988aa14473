"""Cooperation on one asyncio event loop, so that no call delays the others: long work in slices or threads, waits that
respect deadlines, and fair turns."""
