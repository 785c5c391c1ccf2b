"""Signs of life: pings that a native thread of each process answers.

``monitor`` chooses who watches whom, and ``peer`` judges silence.
"""
