"""Cooperation on one event loop: long work in slices or threads, waits that respect deadlines, and fair turns."""
