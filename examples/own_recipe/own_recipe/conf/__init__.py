"""The YAML files of the recipe, as a package Hydra can search."""
