"""Model classes of the toolkit itself; each module registers its class with the Auto classes when imported."""
