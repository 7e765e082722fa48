"""What runs ahead in a loop: loads stages ahead, dots in flight, fragments and copies interleaved."""
