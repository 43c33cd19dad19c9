"""Plain against drafted decoding on this machine: measured, judged, summed up, and shown as text, JSON or a page."""
