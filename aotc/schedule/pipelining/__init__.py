"""Software pipelining: loads stages ahead, dots in flight, copies and fragments interleaved."""
