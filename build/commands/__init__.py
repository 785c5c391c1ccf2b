"""The commands of `python -m build`, one module each; its main function has the name of the module."""
