"""Faults on purpose: a pool of real processes, an injector that proves each fault, and ``multiworld chaos``.

``pool`` starts and commands worker processes, ``injector`` kills, stops and cuts them, ``plan`` draws a reproducible
sequence of faults from a seed, ``run`` plays it and ``report`` says what was noticed, when and by whom.
"""
