"""Instructions on lanes only: branches, exits, shuffles, votes, cluster ranks.

They order no memory.
"""
