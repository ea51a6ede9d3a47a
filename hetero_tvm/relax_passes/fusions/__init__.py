"""Rules that turn several operators into one fused operator with a contract (see ``ops``)."""
