"""What the training programs share: options, tasks, models, data, the trainer and its records."""
