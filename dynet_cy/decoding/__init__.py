"""Decoding: beam search, greedy and sampled outputs, their constraints, and states of many hypotheses."""
