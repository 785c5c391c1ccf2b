"""The two wheels: the official wheel with the overlay inside, and the overlay alone."""
