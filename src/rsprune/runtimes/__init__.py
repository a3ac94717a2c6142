"""How a model runs elsewhere: captured by torch.export, converted to ONNX, run by onnxruntime."""
