"""A generated corpus of ports over real sources, whose right outcome is known because it was made.

A file is a list of lines that keep their identity while an imagined upstream edits them; so where a patch's lines
belong afterwards is not a matter of opinion. Every scenario says beforehand which verdicts are right.
"""
