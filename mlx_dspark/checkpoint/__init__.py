"""Bytes on disk to typed configuration and weights. Knows nothing of decoding."""
