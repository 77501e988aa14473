"""What to tell an operator of a valid policy: names and arguments that its rules mention and nothing has."""
