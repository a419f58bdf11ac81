"""What runs ops: the protocol of a back-end, the registry that finds them, and one folder each."""
