"""Overlays: recompile only the patched translation units and let them take precedence at load time."""
