"""What a person touches: the command and the app."""
