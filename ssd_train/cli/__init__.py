"""From a command line to a validated run: schemas, rules, and the list of recipes."""
