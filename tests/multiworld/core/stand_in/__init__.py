"""A stand-in for SwitchML: its client library's public interface in C++, and a switch."""
