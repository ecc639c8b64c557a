"""Small modules that draft beside a frozen model: made of its own classes, trained apart, stored beside it."""
