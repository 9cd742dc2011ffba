"""What the screens are put together from. A widget does no I/O: it is given what to show, and says what was done."""
