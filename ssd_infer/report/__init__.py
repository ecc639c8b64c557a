"""The checkpoint report: its schema, one writer, and renderers that read nothing but its JSON."""
