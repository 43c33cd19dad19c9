"""Models hold weights, states hold sequences: targets, drafters, and what a verify keeps so it can be undone."""
