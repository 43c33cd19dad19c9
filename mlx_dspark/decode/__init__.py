"""Sampling, acceptance, stopping and the one round. Knows targets and drafters by their protocols only."""
