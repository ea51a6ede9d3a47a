"""Shared parts of the commands: options, the exit code of an error, tables and documents on stdout."""
