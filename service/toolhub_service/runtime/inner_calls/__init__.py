"""Inner calls: those that a running call makes, and their durable log."""
