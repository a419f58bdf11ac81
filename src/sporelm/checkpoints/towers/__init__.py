"""Schemas of the files of vision towers."""
