"""The common part of the training programs: options, tasks, models, data, the trainer and its records."""
