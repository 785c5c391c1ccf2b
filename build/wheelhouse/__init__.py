"""The wheelhouse: built wheels in one folder that any web server or file system serves, and its verification."""
