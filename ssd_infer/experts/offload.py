"""The name under which users know `make_store`; the module is `ssd_infer.offload.offload`."""

from __future__ import annotations

from ssd_infer.offload.offload import load_offloaded, make_store

__all__ = ["load_offloaded", "make_store"]
