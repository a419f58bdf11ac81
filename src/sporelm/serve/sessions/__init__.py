"""Sessions of /infer: kept in memory, and saved to files when they are idle or too many."""
