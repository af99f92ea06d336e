"""Object stores and file servers: one interface, and a backend for each."""
