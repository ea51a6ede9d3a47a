"""Groups of calls as one command stream: partition, residency, addresses, synchronization."""
