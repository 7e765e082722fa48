"""Which warps issue loads and which compute, and the mbarriers between them."""
