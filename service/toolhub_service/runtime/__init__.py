"""The nine steps, a file each. Read pipeline.py first."""
