"""A kind node from package registries alone: Debian packages and Go modules, for where no image registry answers."""
