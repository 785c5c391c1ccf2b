"""Views of worlds from outside: Prometheus metrics, and the status files of ``multiworld top``."""
