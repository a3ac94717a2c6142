"""Networks to start from."""

from rsprune.models.cifar_resnet import CifarResNet
from rsprune.models.registry import build, input_shape, names
from rsprune.models.resnet import ResNet
from rsprune.models.small_cnn import SmallCNN
from rsprune.models.vgg import VGG16

__all__ = ["VGG16", "CifarResNet", "ResNet", "SmallCNN", "build", "input_shape", "names"]
