"""Checks on a device that has shapes and no values: the programs of every bucket of inputs run there, for a tiny model
of each kind of block. Reading a value on the host is an error there. `spore doctor --device meta` and the tests use
it."""
