"""What all tests share."""

from __future__ import annotations

import signal

# A shell that starts a job in the background has it ignore SIGINT, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
