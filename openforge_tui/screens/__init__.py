"""The screens of the app: one a file, its actions declared at its top; no logic that a command would not share."""
