"""Loaded pairs and what runs over them. Knows checkpoints, models and decoding; knows no terminal and no HTTP."""
