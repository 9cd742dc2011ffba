"""veRL plug-ins and the starter policy."""
