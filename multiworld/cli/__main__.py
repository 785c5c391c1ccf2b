"""``python -m multiworld.cli``: the same as ``python -m multiworld``."""

from multiworld.cli import main

main()
