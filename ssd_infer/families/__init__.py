"""How a kind of model decodes plainly, and what it is judged by."""
