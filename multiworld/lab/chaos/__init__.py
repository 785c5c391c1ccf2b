"""``multiworld chaos``: ``plan`` draws faults from a seed, ``run`` plays them, ``report`` says what was noticed."""
