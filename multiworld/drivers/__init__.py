"""What carries collectives: one driver per backend, all behind one small interface."""
