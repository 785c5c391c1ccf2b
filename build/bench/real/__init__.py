"""`bench porting --real`: ports that Debian's maintainers made themselves, as the truth."""
