"""What callers' files take of the disk: the free space that is left to them, and how much each has stored."""
