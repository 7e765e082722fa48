"""Which program instances a CTA runs, and which part of a tile each CTA of a cluster computes."""
