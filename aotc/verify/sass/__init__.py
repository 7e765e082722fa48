"""Audit of SASS: what ptxas made of right PTX, and whether a warp can execute it as it is meant.

A cubin's text is parsed, its control flow rebuilt, the divergence of warps followed from branch to
reconvergence, and rules are applied to what stands where lanes of a warp may be apart.
"""
