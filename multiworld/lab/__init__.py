"""Measurements and deliberate faults: ``multiworld bench``, ``multiworld chaos`` and their worker processes.

The package itself never imports it: a program that uses worlds does not load it, and only the command line does.
"""
