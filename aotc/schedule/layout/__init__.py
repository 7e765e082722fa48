"""Which linear layout every tile has, and which instructions convert it to another one."""
