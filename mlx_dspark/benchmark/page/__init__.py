"""The page of a pair and the index of pages: one file each, nothing fetched, no script."""
