"""Which channels of a model live and die together, and how to cut them."""
