"""Any patch on an official wheel: what it changes, whether an overlay can serve that, and with which units."""
