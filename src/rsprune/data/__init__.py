"""Small, explicit loaders of image data, as whole tensors."""

from rsprune.data.digits import load_digits
from rsprune.data.fashion_mnist import load_fashion_mnist
from rsprune.data.images import Images, ImageSplit

__all__ = ["ImageSplit", "Images", "load_digits", "load_fashion_mnist"]
