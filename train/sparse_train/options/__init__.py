"""The command line of the training programs: options, their types, and what is built from them alone."""
