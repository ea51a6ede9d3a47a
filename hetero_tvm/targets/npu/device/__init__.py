"""The NPU behind its driver interface: driver, simulator, profile."""
