"""``python -m multiworld.cli``: the same as ``multiworld``."""

from multiworld.cli import main

main()
