"""Faults on purpose: a cast of real processes, an injector that proves each fault, and ``multiworld chaos``.

``cast`` starts and commands worker processes, ``injector`` kills, stops and cuts them, ``plan`` draws a reproducible
sequence of faults from a seed, ``run`` plays it and ``report`` says what was noticed, when and by whom.
"""
