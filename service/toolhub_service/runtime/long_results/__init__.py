"""Results that are longer than their inline limit: step 8 cuts them, and keeps the whole as an artifact."""
