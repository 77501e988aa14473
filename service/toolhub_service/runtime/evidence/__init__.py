"""What step 8 does with a result that is longer than its inline limit."""
