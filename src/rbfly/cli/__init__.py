"""The command line, on click; `rbfly --help` imports no command, and not the client."""
