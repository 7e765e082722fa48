"""Asynchronous copies: `cp.async`, bulk and tensor copies, `st.async`, and tensor maps.

One lane issues each, and it completes later, at an mbarrier or with its group.
"""
