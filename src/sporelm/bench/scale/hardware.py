"""Sockets, GPUs, links and machines, as figures: what a cost model needs to know about hardware.

Presets are the peak figures of public data sheets, dense (without sparsity). A cost model multiplies them by shares
that are measured or assumed (`Efficiency`). Prices are assumptions, not offers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Literal

from sporelm.errors import RequestError

AllReduce = Literal["gather", "ring", "tree", "best"]
GB = 1e9
GIBIBYTE = 1 << 30


@dataclass(frozen=True)
class Processor:
    """A socket or a GPU: memory, reading bandwidth, and operations a second by number type ("f32", "f16", "int8").

    A multiply-add counts as two operations.
    """

    name: str
    memory_bytes: float
    bytes_per_second: float
    operations_per_second: Mapping[str, float]
    source: str = ""

    def peak(self, number_type: str) -> float:
        """Return the operations a second for products of a number type. Raises RequestError if it has none."""
        rate = self.operations_per_second.get(number_type)
        if rate is None:
            known = ", ".join(self.operations_per_second)
            raise RequestError(f"{self.name}: no rate for {number_type} products (got {number_type}; allowed {known}).")
        return rate


@dataclass(frozen=True)
class Link:
    """A link in the alpha-beta model: a message of n bytes takes `latency_seconds + n / bytes_per_second`.

    base_seconds   of each collective beside its messages: the launch of a kernel, or a call into a library
    """

    name: str
    latency_seconds: float
    bytes_per_second: float
    base_seconds: float = 0.0
    source: str = ""

    def send(self, nbytes: float) -> float:
        """Return the seconds of one message."""
        return self.base_seconds + self.latency_seconds + nbytes / self.bytes_per_second

    def all_gather(self, nbytes: float, ranks: int) -> float:
        """Return the seconds until each rank has the `nbytes` of each other: ranks - 1 messages one after the other."""
        if ranks == 1:
            return 0.0
        return self.base_seconds + (ranks - 1) * (self.latency_seconds + nbytes / self.bytes_per_second)

    def all_reduce(self, nbytes: float, ranks: int, algorithm: AllReduce = "best") -> float:
        """Return the seconds of a sum of `nbytes` over all ranks (Thakur, Rabenseifner and Gropp 2005).

        gather   each rank gets all arrays, and adds them in rank order: `ops.all_reduce` on a `RankGroup`
        ring     reduce-scatter, then all-gather: 2 (p - 1) messages of nbytes / p
        tree     recursive doubling: log2(p) messages of nbytes
        best     the faster of ring and tree, as libraries choose by size
        """
        if ranks == 1:
            return 0.0
        if algorithm == "gather":
            return self.all_gather(nbytes, ranks)
        messages = {
            "ring": (2 * (ranks - 1), nbytes / ranks),
            "tree": (ceil(log2(ranks)), nbytes),
        }
        seconds = {
            name: self.base_seconds + count * (self.latency_seconds + size / self.bytes_per_second)
            for name, (count, size) in messages.items()
        }
        return min(seconds.values()) if algorithm == "best" else seconds[algorithm]


@dataclass(frozen=True)
class Machine:
    """A host with equal processors, the link between them, and its network."""

    name: str
    processor: Processor
    num_processors: int
    link: Link
    network: Link
    dollars_per_hour: float = 0.0  # an assumption

    def with_link(self, link: Link) -> "Machine":
        """Return a machine whose links are all this one, such as a measured one."""
        return replace(self, link=link, network=link)


DATA_SHEETS = {
    "h100": "NVIDIA H100 Tensor Core GPU data sheet: SXM5, 80 GB, 3.35 TB/s; dense FP16 989 TFLOP/s, INT8 1979",
    "h200": "NVIDIA H200 data sheet: 141 GB HBM3e, 4.8 TB/s; arithmetic as H100 SXM",
    "a100": "NVIDIA A100 80GB SXM data sheet: 2,039 GB/s; dense FP16 312 TFLOP/s, INT8 624 TOP/s",
    "l40s": "NVIDIA L40S data sheet: 48 GB GDDR6, 864 GB/s; dense FP16 362 TFLOP/s, INT8/FP8 733",
    "epyc": "AMD EPYC 9654 product page: 12 channels of DDR5-4800, 460.8 GB/s a socket, 96 cores at 2.4 GHz base",
    "nccl": "NCCL src/graph/tuning.cc (01afd20): ring LL 3.6 us a collective, a message 0.47 us over NVLink, 1.0 over "
    "PCIe, 2.7 over the network",
}

# 96 cores, 512 bits in two passes (Zen 4): a core multiplies and adds 16 f32 numbers a cycle in each of two pipes of
# 256 bits, and four times as many int8 numbers.
EPYC_CYCLES = 96 * 2.4e9
EPYC_9654 = Processor(
    "AMD EPYC 9654",
    384 * GIBIBYTE,
    460.8 * GB,
    {"f32": EPYC_CYCLES * 32, "f16": EPYC_CYCLES * 64, "int8": EPYC_CYCLES * 128},
    DATA_SHEETS["epyc"],
)
H100 = Processor(
    "NVIDIA H100 SXM", 80 * GB, 3350 * GB, {"f32": 67e12, "f16": 989e12, "int8": 1979e12}, DATA_SHEETS["h100"]
)
H200 = Processor(
    "NVIDIA H200 SXM", 141 * GB, 4800 * GB, {"f32": 67e12, "f16": 989e12, "int8": 1979e12}, DATA_SHEETS["h200"]
)
A100 = Processor(
    "NVIDIA A100 SXM", 80 * GB, 2039 * GB, {"f32": 19.5e12, "f16": 312e12, "int8": 624e12}, DATA_SHEETS["a100"]
)
L40S = Processor("NVIDIA L40S", 48 * GB, 864 * GB, {"f32": 91.6e12, "f16": 362e12, "int8": 733e12}, DATA_SHEETS["l40s"])
PROCESSORS = {"epyc-9654": EPYC_9654, "h100": H100, "h200": H200, "a100": A100, "l40s": L40S}

NCCL_BASE_SECONDS = 3.6e-6
TCP_SECONDS = 30e-6  # a message through the kernels of two hosts in one rack; an assumption


def ethernet(gigabits: float) -> Link:
    """Return TCP over Ethernet: the line rate without 5 % of headers, and the assumed latency of TCP."""
    return Link(f"{gigabits:g} GbE, TCP", TCP_SECONDS, 0.95 * gigabits / 8 * GB, 0.0, "line rate; latency assumed")


def rdma(gigabits: float) -> Link:
    """Return RDMA (InfiniBand, RoCE) below NCCL."""
    return Link(f"{gigabits:g} Gbit/s RDMA", 2.7e-6, 0.95 * gigabits / 8 * GB, NCCL_BASE_SECONDS, DATA_SHEETS["nccl"])


LINKS = {
    "nvlink4": Link(
        "NVLink 4", 0.47e-6, 450 * GB, NCCL_BASE_SECONDS, "450 GB/s each way (H100); " + DATA_SHEETS["nccl"]
    ),
    "nvlink3": Link(
        "NVLink 3", 0.47e-6, 300 * GB, NCCL_BASE_SECONDS, "300 GB/s each way (A100); " + DATA_SHEETS["nccl"]
    ),
    "pcie5": Link("PCIe 5 x16", 1.0e-6, 55 * GB, NCCL_BASE_SECONDS, "64 GB/s less overhead; " + DATA_SHEETS["nccl"]),
    "pcie4": Link("PCIe 4 x16", 1.0e-6, 27 * GB, NCCL_BASE_SECONDS, "32 GB/s less overhead; " + DATA_SHEETS["nccl"]),
    "sockets": Link("two sockets of one host", 1e-6, 50 * GB, 2e-6, "assumed: one stream over xGMI"),
    "10gbe": ethernet(10),
    "25gbe": ethernet(25),
    "100gbe": ethernet(100),
    "400gbe": ethernet(400),
    "rdma400": rdma(400),
}

# Dollars an hour for a whole machine, rented for months: assumptions, to be replaced by an offer.
MACHINES = {
    "8xh100": Machine("8 x H100 SXM", H100, 8, LINKS["nvlink4"], LINKS["rdma400"], 24.0),
    "8xh200": Machine("8 x H200 SXM", H200, 8, LINKS["nvlink4"], LINKS["rdma400"], 30.0),
    "8xa100": Machine("8 x A100 SXM 80 GB", A100, 8, LINKS["nvlink3"], LINKS["rdma400"], 14.0),
    "8xl40s": Machine("8 x L40S", L40S, 8, LINKS["pcie4"], LINKS["100gbe"], 8.0),
    "2xepyc": Machine("2 x EPYC 9654", EPYC_9654, 2, LINKS["sockets"], LINKS["25gbe"], 3.0),
}


def find_preset(kind: str, name: str, presets: Mapping[str, object]) -> None:
    """Raise RequestError unless a preset has this name."""
    if name not in presets:
        raise RequestError(f"{kind}: unknown name (got {name[:60]!r}; allowed {', '.join(presets)}).")
