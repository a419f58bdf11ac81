"""Back-ends for vendors' devices: the torch back-end with the fused operators of a vendor's torch extension.

Each file has one vendor: how its device is found, which operators its extension must have, and a function for each op
of ours that calls one, converting layouts and data types where they differ. None of them has run on its device yet.
"""

import sporelm.backends.torch  # noqa: F401 - raises an error with the command that installs torch
