"""Where experts on disk were before; the modules are in `ssd_infer.offload`."""
