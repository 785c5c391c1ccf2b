"""Install a release on many hosts over ssh: `ci/install --help`."""
