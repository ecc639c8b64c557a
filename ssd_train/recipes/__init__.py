"""Recipes, one room each; what all have in common lies beside them."""
