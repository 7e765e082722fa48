"""Which program instances a CTA runs, and which slice of a tile each CTA of a cluster computes."""
