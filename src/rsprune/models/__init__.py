"""Networks to start from."""

from rsprune.models.small_cnn import SmallCNN

__all__ = ["SmallCNN"]
