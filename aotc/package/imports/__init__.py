"""Import what other autotuners chose or measured into a tuning table."""
