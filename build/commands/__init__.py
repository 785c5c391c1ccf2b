"""The commands of `python -m build`, one module each, each with `register(app)`."""
