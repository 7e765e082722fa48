"""Where shared buffers and mbarriers lie, and which barriers order the accesses to them."""
