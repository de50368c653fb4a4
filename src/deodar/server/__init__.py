"""HTTP: routes, request structs, errors, event streams. Never imports torch."""
