"""What the commands share: options, the exit code of an error, tables and documents on stdout."""
