"""The process around all worlds: the hub, fork and exit hooks, threads, event loop, torch's modes."""
