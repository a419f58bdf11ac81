"""The routes, one module for each API that is spoken."""
