"""The back-end for Iluvatar GPUs: plain torch on CoreX's build of torch, whose devices are named "cuda".

The fused operators of its package ixformer have no public documentation that pins their signatures, so none is called.
It has not run on an Iluvatar GPU. Steps are captured by `torch.cuda`, as on other devices of that name.
"""

import torch

from sporelm.backends.protocol import Missing, Ready
from sporelm.backends.vendor.vendor_backend import FusedKernelTable, VendorBackend

TABLE = FusedKernelTable()


class IluvatarBackend(VendorBackend):
    """An Iluvatar GPU through CoreX's build of torch."""

    name = "iluvatar"
    vendor = "Iluvatar"
    kind = "cuda"
    extension = ""
    table = TABLE
    graph_class = "CUDAGraph"

    def probe(self) -> Ready | Missing:
        is_corex = getattr(torch, "corex", False) or getattr(torch.version, "corex", None)
        if not is_corex and self.requested_device != "meta":
            return Missing("torch is not a build of CoreX. Install Iluvatar's, or set the option backend to torch")
        return super().probe()
