"""The command behind `ci/install`: resolver, Ansible's command line, table of the hosts."""
