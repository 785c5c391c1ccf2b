"""The objects of programs: ``MultiWorld``, ``World`` and ``Group``, with their synchronous twins."""
