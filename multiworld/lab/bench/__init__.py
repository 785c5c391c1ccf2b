"""``multiworld bench``: worlds against plain ``torch.distributed``, in the same two processes, in turns.

A machine that does other things too makes any single figure meaningless; the ratio of two that were taken in turns is
robust, and it is given with its interval. ``run`` does it all, one module per part measures, ``report`` holds it.
"""
