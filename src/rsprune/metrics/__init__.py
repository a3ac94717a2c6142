"""What a model costs."""

from rsprune.metrics.macs import Layer, Profile, profile

__all__ = ["Layer", "Profile", "profile"]
