"""``python -m multiworld``: the ``multiworld`` command."""

from multiworld.cli import main

if __name__ == "__main__":
    main()
