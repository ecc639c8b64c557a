"""Hydra configuration of the toolkit; in a wheel this data-only package is called `ssd_conf`."""
