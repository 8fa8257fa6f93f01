"""A project that uses the library, as type checkers see it: nothing but the public names, `mypy --strict`, pyright."""
