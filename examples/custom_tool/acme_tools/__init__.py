"""Tools of the imaginary firm Acme for tool-hub."""
