"""Train models so that a cheap version of themselves can draft for them: `python -m ssd_train +recipe=NAME`."""
