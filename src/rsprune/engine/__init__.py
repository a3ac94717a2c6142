"""Training, evaluation and runs; the only room that knows accelerate."""
