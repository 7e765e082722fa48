"""What passes ask about a kernel: addresses, signs, memory order, live ranges. Changes nothing."""
