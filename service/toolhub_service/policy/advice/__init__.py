"""Warnings about a valid policy: its rules mention names and arguments that no tool or principal has."""
