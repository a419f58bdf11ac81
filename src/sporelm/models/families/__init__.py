"""Families that are not converted to `models.architectures` and schemas yet."""
