"""The version of this package, for records, manifests and `pip`."""

VERSION = "0.1.0"
