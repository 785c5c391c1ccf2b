"""A generated corpus of ports over real sources, whose right outcome is known because it was made.

A file is a list of lines that keep their identity while a generated upstream edits them. So the place of a
patch's lines is known afterwards. Every scenario states which verdicts are right.
"""
