"""`python -m openforge_tui` is the `openforge` command."""

from openforge_tui.cli.app import main

raise SystemExit(main())
