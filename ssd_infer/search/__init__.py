"""Which sublayers to skip: exact acceptance in one pass, measured costs, and searches over both."""
