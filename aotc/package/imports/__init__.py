"""Import the results of other autotuners into a tuning table."""
