"""The same algorithms between organisations: one server, and sites that keep their rows."""
