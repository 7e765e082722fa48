"""Map program instances to CTAs, and slices of tiles to the CTAs of a cluster."""
