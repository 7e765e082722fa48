"""Asynchronous copies: `cp.async`, bulk and tensor copies, `st.async`, and tensor maps.

Each is issued by one lane and happens later; mbarriers or groups say when.
"""
