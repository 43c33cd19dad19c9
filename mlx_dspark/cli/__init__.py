"""The terminal: parses flags, shows text and progress, maps errors to exit codes. Decides nothing about decoding."""
