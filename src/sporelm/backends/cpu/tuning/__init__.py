"""Measurements on the machine at hand: register tiles, and the rates that it can reach at most."""
