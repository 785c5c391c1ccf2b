"""Worlds that a program wants, kept by a supervisor: joined, assembled again, given up."""
