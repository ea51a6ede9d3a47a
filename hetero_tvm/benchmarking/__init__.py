"""Comparing an exported library with other runtimes, side by side and fairly."""
