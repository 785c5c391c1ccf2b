"""Signs of life: pings answered by a native thread of each process, the choice of who watches whom (``monitor``), and the judge of silence (``peer``)."""
