"""Which linear layout every tile has, and what instructions move a tile from one to another."""
