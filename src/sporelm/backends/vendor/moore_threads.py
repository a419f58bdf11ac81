"""The back-end for Moore Threads GPUs: plain torch on torch_musa's device.

torch_musa dispatches torch's own functions to fused kernels (`rms_norm`, `scaled_dot_product_attention`), which the
torch back-end calls on every device. It documents no operators beyond them with signatures to call. It has not run on a
GPU of Moore Threads. Steps are captured as `torch.musa.MUSAGraph`, which has the functions of CUDA's graphs.
"""

from sporelm.backends.vendor.vendor_backend import FusedTable, VendorBackend

TABLE = FusedTable()


class MooreThreadsBackend(VendorBackend):
    """A GPU of Moore Threads through torch_musa."""

    name = "moorethreads"
    vendor = "Moore Threads"
    kind = "musa"
    extension = "torch_musa"
    table = TABLE
    graph_class = "MUSAGraph"

    def find_extension_obstacle(self) -> str:
        """Return why torch_musa cannot be used. Its versions are its own (1.3, 2.0, ...): torch's does not follow."""
        reason = super().find_extension_obstacle()
        return "" if "is for another torch" in reason else reason
