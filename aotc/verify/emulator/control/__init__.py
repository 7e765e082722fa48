"""Instructions about lanes alone: branches, exits, shuffles and votes, ranks in a cluster.

None of them orders memory.
"""
