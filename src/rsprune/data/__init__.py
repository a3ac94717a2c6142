"""Image data by name, as training, validation and test parts."""

from rsprune.data.cache import cache_directory
from rsprune.data.digits import load_digits
from rsprune.data.fashion_mnist import load_fashion_mnist
from rsprune.data.fetch import fetch_cifar10
from rsprune.data.images import Images, ImageSplit
from rsprune.data.loading import load, names
from rsprune.data.part import Batch, Data, Part

__all__ = [
    "Batch",
    "Data",
    "ImageSplit",
    "Images",
    "Part",
    "cache_directory",
    "fetch_cifar10",
    "load",
    "load_digits",
    "load_fashion_mnist",
    "names",
]
