"""What the project promises in figures, measured."""
