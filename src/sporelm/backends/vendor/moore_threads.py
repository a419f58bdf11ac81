"""The back-end for Moore Threads GPUs: plain torch on torch_musa's device.

torch_musa dispatches torch's own functions to fused kernels (`rms_norm`, `scaled_dot_product_attention`), which the
torch back-end calls on every device. It documents no operators beyond them with signatures to call. It has not run on a
GPU of Moore Threads. Steps are captured as `torch.musa.MUSAGraph`, which has the functions of CUDA's graphs.
"""

from sporelm.backends.vendor.vendor_backend import FusedKernelTable, VendorBackend

TABLE = FusedKernelTable()


class MooreThreadsBackend(VendorBackend):
    """A GPU of Moore Threads through torch_musa."""

    name = "moorethreads"
    vendor = "Moore Threads"
    kind = "musa"
    extension = "torch_musa"
    follows_torch = False  # torch_musa has version numbers of its own (1.3, 2.0, ...)
    table = TABLE
    graph_class = "MUSAGraph"
