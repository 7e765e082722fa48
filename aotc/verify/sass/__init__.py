"""Audit SASS: whether warps can execute ptxas' output as the PTX means it.

A cubin's text is parsed and its control flow rebuilt. The divergence of warps is followed from
branch to reconvergence, and rules are applied to the instructions of diverged warps.
"""
