"""Measure the figures that the project promises."""
